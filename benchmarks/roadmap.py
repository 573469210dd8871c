"""What each step of an optimisation brings to one training: batch, fused kernels, precision, accumulation, recompute."""

import json
import os
import shutil
import subprocess
from statistics import median

from harness import BIN, ROOT, print_table, spread, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "roadmap")
RANKS, SEQUENCE, WARMUP = 2, 256, 3
MODEL = {"model.hidden_size": 256, "model.ffn_size": 768}  # the rest of it is the quickstart's
# Each row changes what it names in the row before.
STEPS = (("a sequence a rank", {"train.batch_sequences": 2}),
         ("4 sequences a rank", {"train.batch_sequences": 8}),
         ("a product for q, k and v, one for gate and up", {"train.projections": "fused"}),
         ("bf16, main weights in fp32", {"shard.precision": "bf16"}),
         ("4 microbatches a step", {"train.batch_sequences": 32, "train.microbatch_sequences": 4}),
         ("norms and activations computed again", {"train.recompute": "elementwise"}),
         ("whole blocks computed again", {"train.recompute": "block"}))


def prepare():
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([os.path.join(BIN, "fsdp"), "prepare", os.path.join(ROOT, "fsdp", "**", "*"), "--output",
                    os.path.join(FOLDER, "data"), "--holdout", "5%"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def train(settings, steps):
    output = os.path.join(FOLDER, "train")
    settings = {"data.path": os.path.join(FOLDER, "data"), "output.folder": output, "train.steps": WARMUP + steps,
                "train.warmup_steps": 0, "train.fit_minutes": 0, "train.max_minutes": 0, "train.log_every": 1,
                "train.final_eval_batches": 1, **MODEL, **settings}
    subprocess.run([os.path.join(BIN, "fsdp"), "launch", "--nproc", str(RANKS), "--", "train", "configs/quickstart.toml",
                    *(f"--{key}={value}" for key, value in settings.items())], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(output, "metrics.jsonl")) as file:
        return [line for line in map(json.loads, file) if "step_ms" in line][WARMUP:]


def roadmap(options):
    prepare()
    rows, entries, settings = [("step", "ms", "tok/s", "against the first", "mfu", "peak MiB of a rank")], [], {}
    speeds = []
    runs = [[] for _ in STEPS]
    for _ in range(options.rounds or 2):
        settings = {}
        for place, (_, change) in enumerate(STEPS):
            settings = {**settings, **change}
            runs[place] += train(settings, options.steps or 10)
    settings = {}
    for (name, change), lines in zip(STEPS, runs):
        settings = {**settings, **change}
        ms = [line["step_ms"] for line in lines]
        speeds.append(1e3 * settings["train.batch_sequences"] * SEQUENCE / median(ms))
        rows.append((name, spread(ms), f"{speeds[-1]:,.0f}", f"{speeds[-1] / speeds[0]:.2f}",
                     f"{100 * median(line['mfu'] for line in lines):.0f}%",
                     f"{max(line['memory']['peak_bytes'] for line in lines) >> 20}"))
        entries.append({"name": f"roadmap/{name}", "ms": median(ms), "tokens_per_s": speeds[-1]})
    print(f"\nA model of 4.8M parameters, {RANKS} ranks of a thread, sequences of {SEQUENCE} tokens; each row keeps what "
          "the\nrows above it changed; in turns; median [min-max]. Attention is fused from the first row on")
    print_table(rows)
    write_json("roadmap", entries)
