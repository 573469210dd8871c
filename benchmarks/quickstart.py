"""The table of the quickstart's training: ours on two ranks against plain PyTorch on two threads, held to the same
instruction set."""

import glob
import json
import os
import shutil
import subprocess
import tomllib
from statistics import median

from harness import BIN, ROOT, chosen_isas, entry, held_to, pooled, print_table, run, script, spread, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "quickstart")
with open(os.path.join(ROOT, "configs", "quickstart.toml"), "rb") as recipe:
    RECIPE = tomllib.load(recipe)
TOKENS = RECIPE["train"]["batch_sequences"] * RECIPE["data"]["sequence_length"]  # a step
WARMUP = 10


def prepare():
    """The C++ headers that scripts/quickstart.sh trains on."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    headers = sorted(glob.glob("/usr/include/c++/*"))[-1]
    subprocess.run([os.path.join(BIN, "fsdp"), "prepare", headers + "/**/*", "--output", os.path.join(FOLDER, "data"),
                    "--holdout", "5%"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def train(precision, steps, isa):
    """Milliseconds of the steps after the first ones."""
    output = os.path.join(FOLDER, "train")
    settings = {"data.path": os.path.join(FOLDER, "data"), "output.folder": output, "train.steps": WARMUP + steps,
                "train.warmup_steps": 0, "train.fit_minutes": 0, "train.max_minutes": 0, "train.log_every": 1, "shard.precision": precision}
    subprocess.run([os.path.join(BIN, "fsdp"), "launch", "--nproc", "2", "--", "train", "configs/quickstart.toml",
                    *(f"--{key}={value}" for key, value in settings.items())],
                   cwd=ROOT, env=held_to(isa), check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(output, "metrics.jsonl")) as file:
        lines = [line for line in map(json.loads, file) if "step_ms" in line]
    return {"step_ms": [line["step_ms"] for line in lines[WARMUP:]], "mfu": median(line["mfu"] for line in lines[WARMUP:]),
            "loss": lines[-1]["loss"]}


def quickstart(options):
    prepare()
    rows = [("set", "dtype", "libfsdp ms", "PyTorch ms", "ratio", "libfsdp tok/s", "PyTorch tok/s", "mfu")]
    entries, steps = [], options.steps or 20
    for isa in chosen_isas(options):
        for precision in options.dtype or ("fp32", "bf16"):
            mine, theirs = [], []
            for _ in range(options.rounds or 3):
                mine.append(train(precision, steps, isa))
                theirs.append(run(script("quickstart_transformers", "--precision", precision, "--steps", str(steps)),
                                  meet=False, variables={"FSDP_CPU_ISA": isa, "OMP_NUM_THREADS": "2"}))
            ms, peer_ms = (median(pooled(runs, "step_ms")) for runs in (mine, theirs))
            rows.append((isa, precision, spread(pooled(mine, "step_ms")), spread(pooled(theirs, "step_ms")),
                         f"{peer_ms / ms:.2f}", f"{1e3 * TOKENS / ms:,.0f}", f"{1e3 * TOKENS / peer_ms:,.0f}",
                         f"{100 * median(result['mfu'] for result in mine):.0f}%"))
            entries.append(entry(f"quickstart/{isa}/{precision}", ms, peer_ms, "ms"))
            print_table(rows[:1] + rows[-1:])
    print(f"\nThe quickstart's model (1.2M parameters), {TOKENS:,} tokens a step: libfsdp, 2 ranks of 1 thread; transformers' "
          "SmolLM3 with SDPA and\nfused AdamW, 2 threads (bf16: autocast); in turns; median [min-max]")
    print_table(rows)
    write_json("quickstart", entries)
