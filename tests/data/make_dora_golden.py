#!/usr/bin/env python3
"""Writes dora.safetensors: a linear map with an adapter of DoRA, as peft computes it.

    python3 tests/data/make_dora_golden.py

Needs PyTorch, peft and safetensors. `weight`, `bias`, `a`, `b` and `magnitude` are the parameters (rank 2, alpha 5), `x` and `y`
input and output, `merged` the weight after `merge_and_unload`, `grad_a`, `grad_b` and `grad_magnitude` the gradients of sum(y * seen).
"""

import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file


class One(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(7, 5)

    def forward(self, x):
        return self.map(x)


def main():
    torch.manual_seed(20262)
    model = get_peft_model(One(), LoraConfig(r=2, lora_alpha=5, target_modules=["map"], use_dora=True))
    layer = model.base_model.model.map
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    magnitude = layer.lora_magnitude_vector["default"].weight
    with torch.no_grad():
        b.normal_()
        magnitude.add_(torch.rand(5) - 0.3)
    x, seen = torch.randn(4, 7), torch.randn(4, 5)
    y = model(x)
    (y * seen).sum().backward()
    tensors = {"weight": layer.base_layer.weight, "bias": layer.base_layer.bias, "a": a, "b": b, "magnitude": magnitude, "x": x,
               "seen": seen, "y": y, "grad_a": a.grad, "grad_b": b.grad, "grad_magnitude": magnitude.grad}
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    tensors["merged"] = model.merge_and_unload().map.weight.detach().clone().contiguous()
    save_file(tensors, pathlib.Path(__file__).parent / "dora.safetensors")


if __name__ == "__main__":
    main()
