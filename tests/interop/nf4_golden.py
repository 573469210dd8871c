#!/usr/bin/env python3
"""Writes tests/data/nf4.safetensors: weights, and what bitsandbytes makes of them on the CPU.

    python3 tests/interop/nf4_golden.py tests/data/nf4.safetensors

Needs PyTorch, bitsandbytes and safetensors. For each weight NAME: NAME.weight, and as quantize_4bit(quant_type="nf4",
compress_statistics=True, blocksize=64) gives them NAME.codes, NAME.absmax, NAME.nested_absmax and NAME.nested_offset. NAME.decoded is
what they stand for in the weight's type: by the operators that bitsandbytes has for any device, because its AVX-512 code for the CPU
(0.50.2) takes scales of other blocks where rows have a multiple of 16 numbers, but not of 64. Where rows have a multiple of 64 the
two must agree, or this ends with an error.
"""

import sys

import torch
from bitsandbytes import functional
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as decode
from bitsandbytes.backends.utils import _get_4bit_code as values_of
from safetensors.torch import save_file


def weights():
    generator = torch.Generator().manual_seed(20261)
    normal = lambda *sizes: torch.randn(*sizes, generator=generator)
    return {
        "whole": 0.05 * normal(24, 64),
        "two_groups": (0.02 * normal(130, 128)).bfloat16(),  # 260 blocks
        "cut_short": normal(7, 33),  # an odd number, in a last block of 39
        "few_blocks": normal(5, 64),
        "narrow_rows": normal(30, 16),
        "half": (0.1 * normal(20, 64)).half(),
        "loud_rows": 0.05 * normal(40, 64) * torch.exp(2 * normal(40, 1)),
        "partly_zero": torch.cat([torch.zeros(6, 64), normal(6, 64)]),
        "zero": torch.zeros(4, 64),
        "constant": torch.full((8, 64), 0.3),
    }


def main():
    torch.set_num_threads(1)  # the sum of scales, and so their mean, depends on it
    tensors = {}
    for name, weight in weights().items():
        codes, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True, blocksize=64)
        scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        decoded = decode(codes.reshape(-1), scales, values_of("nf4", codes.device), 64, weight.shape, weight.dtype)
        if weight.shape[1] % 64 == 0 and not torch.equal(decoded, functional.dequantize_4bit(codes, state)):
            sys.exit(f"nf4_golden: {name}: bitsandbytes decodes its codes in two ways")
        tensors |= {f"{name}.weight": weight, f"{name}.codes": codes.reshape(-1), f"{name}.absmax": state.absmax,
                    f"{name}.nested_absmax": state.state2.absmax, f"{name}.nested_offset": state.offset.reshape(1)}
        if name != "two_groups":  # to keep the file small
            tensors[f"{name}.decoded"] = decoded.contiguous()
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
