#!/usr/bin/env python3
"""Model folders of `fsdp` against Hugging Face transformers, in both directions, for every family.

    python3 tests/interop/transformers_round_trip.py --fsdp build/release/bin/fsdp

Needs torch, transformers and safetensors. What `fsdp export` writes, in shards and in bf16, must load without a missing
or surplus name and give equal logits; what transformers writes, in shards and in bf16 or fp16, must compute the same
here (`fsdp parity`, alone and over 3 ranks); what an export in fp8 stands for must be the same numbers there and, after
`fsdp import`, here; models that `fsdp train` makes and their checkpoints must load and compute
the same there; presets must be what transformers makes of their config.json.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "tests" / "data" / "models", ROOT.parent / "shared" / "fixtures" / "models")
TINY = {"smollm3": [], "llama": ["--model.tie_embeddings=false"], "mistral": ["--model.sliding_window=7"],
        "qwen2": [], "qwen3": ["--model.head_dim=12"]}

failures = []


def check(what, condition, note=""):
    print(("ok    " if condition else "FAIL  ") + what + (f": {note}" if note else ""), flush=True)
    if not condition:
        failures.append(what)


def load(folder, dtype=torch.float32):
    """The model, and whether every name was there and none too many."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                       experts_implementation="eager",
                                                       output_loading_info=True)
    complete = not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval(), complete


def convert(model, dtype):
    """The parameters only: `model.to()` would round the frequencies of the rotary embedding too."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def some_ids(model):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(4, model.config.vocab_size, (2, 33), generator=generator)


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def write_expected(model, file):
    """What `fsdp parity` compares with."""
    ids = some_ids(model)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    gradients = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    save_file({"input_ids": ids, "labels": ids.clone(), "logits": logits.detach().contiguous(), "loss": loss.detach(),
               **gradients},
              file)


class Fsdp:
    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments):
        result = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(result.stdout + result.stderr, end="")
        return result

    def good(self, *arguments):
        return self.run(*arguments).returncode == 0

    def agrees(self, label, folder, expected):
        for ranks in (1, 3):
            check(f"{label}: parity, {ranks} rank(s)",
                  self.good("launch", "--nproc", ranks, "--", "parity", folder, "--expected", expected))


def check_export(fsdp, work, source):
    """Exports of a golden model against the model itself."""
    original, _ = load(source)
    ids = some_ids(original)
    out = work / f"{source.name}-shards"
    check(f"{source.name}: export in shards", fsdp.good("export", source, "--out", out, "--shard-size", "60KB"))
    model, complete = load(out)
    sharded = (out / "model.safetensors.index.json").exists() or sum(p.numel() for p in model.parameters()) < 15000
    check(f"{source.name}: shards, index, every name", complete and sharded)
    check(f"{source.name}: equal logits", torch.equal(logits_of(model, ids), logits_of(original, ids)))
    out = work / f"{source.name}-bf16"
    check(f"{source.name}: export as bf16", fsdp.good("export", source, "--out", out, "--dtype=bf16"))
    model, complete = load(out, "auto")
    wanted = logits_of(convert(original, torch.bfloat16), ids)
    check(f"{source.name}: bf16, equal logits",
          complete and model.dtype == torch.bfloat16 and torch.equal(logits_of(model, ids), wanted))


def check_fp8(fsdp, work, source):
    """What transformers makes of an export in fp8, against what `fsdp import` makes of it."""
    out, back = work / f"{source.name}-fp8", work / f"{source.name}-from-fp8"
    check(f"{source.name}: export as fp8, import", fsdp.good("export", source, "--out", out, "--dtype=fp8") and
          fsdp.good("import", out, "--out", back))
    theirs = AutoModelForCausalLM.from_pretrained(
        out, quantization_config=transformers.FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16).state_dict()
    ours, _ = load(back, torch.bfloat16)
    different = [name for name, value in ours.state_dict().items() if not torch.equal(value, theirs[name])]
    check(f"{source.name}: fp8 stands for the same numbers", not different, ", ".join(different))


def check_load(fsdp, work, source):
    """What transformers saves, in shards and other types."""
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        model, _ = load(source)
        convert(model, dtype)
        folder = work / f"{source.name}-saved-{name}"
        model.save_pretrained(folder, max_shard_size="40KB")
        write_expected(convert(model, torch.float32), work / "expected.safetensors")
        fsdp.agrees(f"{source.name} saved as {name}", folder, work / "expected.safetensors")


def check_trained(fsdp, work):
    """Models that start here."""
    text = work / "text"
    text.mkdir()
    for index, file in enumerate(sorted((ROOT / "models").glob("*.cpp"))):
        (text / f"{index}.txt").write_bytes(file.read_bytes())
    fsdp.run("prepare", text, "-o", work / "data", "--holdout", "20%")
    for family, keys in TINY.items():
        run = work / f"run-{family}"
        check(f"{family}: train",
              fsdp.good("train", f"--model.family={family}", "--model.hidden_size=32", "--model.layers=4", *keys,
                        "--model.ffn_size=48", f"--data.path={work / 'data'}", "--data.sequence_length=32",
                        "--train.steps=4", "--train.warmup_steps=0", "--train.batch_sequences=4", "--checkpoint.every_steps=4",
                        "--train.z_loss=1e-4", "--train.label_smoothing=0.1", f"--output.folder={run}"))
        model, complete = load(run / "model")
        check(f"{family}: every name", complete)
        write_expected(model, work / "expected.safetensors")
        fsdp.agrees(f"{family} trained here", run / "model", work / "expected.safetensors")
        out = work / f"export-{family}"
        check(f"{family}: export of the checkpoint",
              fsdp.good("export", run / "checkpoints" / "step-4", "--out", out, "--shard-size", "50KB"))
        exported, complete = load(out)
        ids = some_ids(model)
        check(f"{family}: checkpoint, equal logits",
              complete and torch.equal(logits_of(exported, ids), logits_of(model, ids)))


def check_presets(fsdp, work):
    table = fsdp.run("inspect", "--presets").stdout.splitlines()[1:]
    for line in table:
        name, parameters = line.split()[:2]
        folder = work / "preset"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(fsdp.run("inspect", "--preset", name, "--json").stdout)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        model.tie_weights()
        count = sum(p.numel() for p in model.parameters())
        check(f"preset {name}: {parameters} parameters", count == int(parameters.replace(",", "")), f"{count:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", required=True, help="the binary")
    options = parser.parse_args()
    fsdp = Fsdp(os.path.abspath(options.fsdp))
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        check_presets(fsdp, work)
        for source in [folder for root in FOLDERS if root.exists() for folder in sorted(root.iterdir())]:
            if (source / "expected.safetensors").exists():
                check_export(fsdp, work, source)
                check_fp8(fsdp, work, source)
                check_load(fsdp, work, source)
        check_trained(fsdp, work)
    print(f"transformers_round_trip: {len(failures)} failures with transformers {transformers.__version__}, "
          f"PyTorch {torch.__version__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
