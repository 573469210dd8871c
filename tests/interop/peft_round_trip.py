#!/usr/bin/env python3
"""Compares LoRA adapters of `fsdp train` with peft, in both directions.

    python3 tests/interop/peft_round_trip.py --fsdp build/release/bin/fsdp

Needs PyTorch, transformers, peft and safetensors. For a small random model of each family:
- `fsdp train` makes an adapter on 2 ranks (LoRA, DoRA, and LoRA that PiSSA began); peft loads it on the base, and its logits must
  be those of the model that `fsdp export --merge` writes, computed by transformers and by `fsdp parity`.
- peft saves an adapter with random factors, plain, with use_rslora and with use_dora; `fsdp export --merge` reads it, and `fsdp
  parity` compares the logits with those of peft.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, SmolLM3Config

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES = dict(vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
             initializer_range=0.1)
CONFIGS = {"llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
           "smollm3": lambda: SmolLM3Config(**SIZES, tie_word_embeddings=True)}
TOLERANCE = 5e-5  # of logits in fp32, as `fsdp parity` has it

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


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids).logits.float()


def largest(a, b):
    return (a - b).abs().max().item()


def compare_with_ours(fsdp, folder, what, merged, model, ids):
    """`fsdp parity` on the merged folder against logits and loss of `model`."""
    with torch.no_grad():
        output = model(ids, labels=ids)
    expected = folder / "expected.safetensors"
    save_file({"input_ids": ids, "labels": ids.clone(), "logits": output.logits.float().contiguous(),
               "loss": output.loss.float()}, expected)
    check(f"{what}: `fsdp parity` computes peft's logits and loss", run(fsdp, "parity", merged, "--expected", expected))


def train_adapter(fsdp, folder, base, more):
    text = folder / "text"
    text.mkdir(exist_ok=True)
    for number in range(8):
        (text / f"{number}.txt").write_text("".join(f"line {i * (number + 3) % 17} of {number}\n" for i in range(60)))
    data = folder / "data"
    if not data.exists() and not run(fsdp, "prepare", text, "-o", data, "--holdout", "20%"):
        sys.exit("peft_round_trip: `fsdp prepare` failed")
    out = folder / ("run" + "".join("-" + value for value in more.values()))
    options = {"model.path": base, "data.path": data, "data.sequence_length": 64, "train.steps": 12,
               "train.batch_sequences": 4, "train.warmup_steps": 2, "train.lr": 2e-2, "tune.method": "lora",
               "tune.lora_rank": 4, "tune.lora_alpha": 10, "output.folder": out, **more}
    config = folder / "empty.toml"
    config.write_text("")
    done = run(fsdp, "launch", "--nproc", 2, "--", "train", config, *[f"--{key}={value}" for key, value in options.items()])
    check(f"`fsdp train` makes an adapter on 2 ranks {more or ''}", done)
    return out / "model"


def peft_name(name):
    if name.endswith("lora_magnitude_vector"):
        return name + ".default.weight"
    return name.replace(".weight", ".default.weight")


def check_ours_in_peft(fsdp, folder, base, ids, more):
    adapter = train_adapter(fsdp, folder, base, more)
    plain = logits_of(load(base), ids)
    tuned = PeftModel.from_pretrained(load(base), adapter).eval()
    named = {name: tensor for name, tensor in tuned.state_dict().items() if ".lora_" in name}
    stored = load_file(adapter / "adapter_model.safetensors")
    check("peft has each of our tensors, bit for bit",
          len(named) == len(stored) == (3 if "dora" in more.values() else 2) * 3 * len(TARGETS)
          and all(torch.equal(named[peft_name(name)], stored[name]) for name in stored))
    logits = logits_of(tuned, ids)
    check(f"the adapter changes logits (by {largest(logits, plain):.2g})", largest(logits, plain) > 1e-2)
    merged = adapter.parent / "merged"
    check("`fsdp export --merge` writes a model", run(fsdp, "export", adapter, "--merge", base, "-o", merged))
    distance = largest(logits_of(load(merged), ids), logits)
    check(f"transformers on the merged model computes peft's logits (within {distance:.1e})", distance < TOLERANCE)
    compare_with_ours(fsdp, folder, "our adapter", merged, tuned, ids)


def check_peft_in_ours(fsdp, folder, base, ids, more):
    what = "adapter of peft" + "".join(f" with {key}" for key in more)
    folder = folder / ("of_peft" + "".join(more))
    folder.mkdir()
    config = LoraConfig(r=6, lora_alpha=9, target_modules=TARGETS[:5], task_type="CAUSAL_LM", **more)
    model = get_peft_model(load(base), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
            if "magnitude" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(folder / "adapter")
    merged = folder / "merged"
    check(f"{what}: `fsdp export --merge` reads it", run(fsdp, "export", folder / "adapter", "--merge", base, "-o", merged))
    compare_with_ours(fsdp, folder, what, merged, model, ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", required=True, help="the binary")
    parser.add_argument("--seed", type=int, default=20261)
    options = parser.parse_args()
    fsdp = str(pathlib.Path(options.fsdp).resolve())
    for family, make_config in CONFIGS.items():
        print(f"-- {family}, seed {options.seed}", flush=True)
        torch.manual_seed(options.seed)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            base = folder / "base"
            AutoModelForCausalLM.from_config(make_config()).save_pretrained(base)
            ids = torch.randint(3, SIZES["vocab_size"], (2, 40))
            for more in ({}, {"tune.lora_kind": "dora"}, {"tune.lora_init": "pissa"}):
                check_ours_in_peft(fsdp, folder, base, ids, more)
            for more in ({}, {"use_rslora": True}, {"use_dora": True}):
                check_peft_in_ours(fsdp, folder, base, ids, more)
    print(json.dumps({"failures": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
