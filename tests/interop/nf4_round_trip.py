#!/usr/bin/env python3
"""Compares models in 4 bits with transformers and bitsandbytes, in both directions.

    python3 tests/interop/nf4_round_trip.py --fsdp build/release/bin/fsdp

Needs PyTorch, transformers, accelerate, bitsandbytes and safetensors; runs on the CPU.
- `fsdp export --dtype nf4` writes a folder that transformers loads as it is, and whose tensors are those that transformers' own
  quantisation of the same model saves, bit for bit.
- `fsdp import` turns both folders into the same weights, with which transformers computes the logits of its 4-bit model.
- `fsdp train` with tune.base=nf4 trains on the 16-bit folder and on either 4-bit folder to the same losses.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

failures = []


def check(what, condition):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def run(fsdp, *arguments):
    result = subprocess.run([fsdp, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        print(result.stdout + result.stderr, file=sys.stderr)
    return result.returncode == 0


def tensors_of(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def same_codes(ours, theirs):
    """All tensors equal but the text of the state, which is JSON: that says the same, spaces and order aside."""
    if ours.keys() != theirs.keys():
        print(sorted(ours.keys() ^ theirs.keys())[:6])
        return False
    for name, tensor in ours.items():
        if name.endswith(".quant_state.bitsandbytes__nf4"):
            texts = [json.loads(bytes(each[name].tolist()).decode()) for each in (ours, theirs)]
            if texts[0] != texts[1]:
                print(name, texts)
                return False
        elif not torch.equal(tensor, theirs[name]):
            print(name, (tensor != theirs[name]).sum().item(), "differ")
            return False
    return True


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", default="build/release/bin/fsdp")
    fsdp = parser.parse_args().fsdp
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        torch.manual_seed(5)
        config = LlamaConfig(vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
                             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                             initializer_range=0.1, tie_word_embeddings=False)
        base = root / "base"
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(base)
        quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                       bnb_4bit_compute_dtype=torch.float32)
        AutoModelForCausalLM.from_pretrained(base, quantization_config=quantised, dtype=torch.bfloat16,
                                             device_map="cpu").save_pretrained(root / "theirs")

        check("`fsdp export --dtype nf4`", run(fsdp, "export", base, "--dtype", "nf4", "-o", root / "ours"))
        check("both folders have the same tensors", same_codes(tensors_of(root / "ours"), tensors_of(root / "theirs")))
        for folder in ("ours", "theirs"):
            check(f"`fsdp import` of {folder}", run(fsdp, "import", root / folder, "--dtype", "fp32", "-o", root / f"{folder}_back"))
        back = tensors_of(root / "ours_back")
        check("both become the same weights", all(torch.equal(tensor, tensors_of(root / "theirs_back")[name])
                                                  for name, tensor in back.items()))
        ids = torch.arange(40).reshape(2, 20) + 3
        with torch.no_grad():
            coded = AutoModelForCausalLM.from_pretrained(root / "ours", device_map="cpu", dtype=torch.bfloat16)
            decoded = AutoModelForCausalLM.from_pretrained(root / "ours_back", dtype=torch.bfloat16)
            a, b = coded(ids).logits.float(), decoded(ids).logits.float()
        difference = ((a - b).norm() / b.norm()).item()
        check(f"transformers computes with the folder as it is (logits differ by {difference:.1e} from decoded ones in bf16)",
              difference < 5e-2)  # its product for the CPU rounds scales to bf16

        text = root / "text"
        text.mkdir()
        for number in range(8):
            (text / f"{number}.txt").write_text("".join(f"line {i * (number + 3) % 17} of {number}\n" for i in range(60)))
        check("`fsdp prepare`", run(fsdp, "prepare", text, "-o", root / "data", "--holdout", "20%"))
        for folder in ("base", "ours", "theirs"):
            check(f"adapters train on {folder}",
                  run(fsdp, "launch", "--nproc", "2", "--", "train", f"--model.path={root / folder}", f"--data.path={root / 'data'}",
                      "--data.sequence_length=32", "--train.steps=5", "--train.batch_sequences=8", "--train.lr=1e-2",
                      "--train.warmup_steps=1", "--train.log_every=1", "--tune.method=lora", "--tune.base=nf4",
                      f"--output.folder={root / f'run_{folder}'}"))
        losses = [losses_of(root / f"run_{folder}") for folder in ("base", "ours", "theirs")]
        check("to the same losses", losses[0] == losses[1] == losses[2] and len(losses[0]) == 5)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
