"""The planner's time of a step against runs of the trainer: random small decoders on two ranks of this machine, each along
one axis (data, tp, cp, pp in every order, ep), on hardware that `fsdp plan calibrate --ranks 2` measured right before.
`python3 benchmarks/plan_time.py` prints the table of docs/plan_time.md; 20 runs take about 8 minutes, --runs and --only
fewer. Nothing else should run meanwhile."""

import argparse
import os
import random
import re
import subprocess
import time

from harness import BIN, ROOT, prepare_headers

FSDP = os.path.join(BIN, "fsdp")
FOLDER = os.path.join(ROOT, "build", "bench", "plan_time")
RANKS = 2
KINDS = ("data", "pp", "ep", "tp", "cp")
DONE = re.compile(r"plan: a step took ([0-9.]+) ms \([-+0-9.]+ % of the ([0-9.]+) planned")
BUSY = re.compile(r"busiest rank got ([0-9.]+) times an equal share, with which ([0-9.]+) ms are planned")


def calibrate(seconds):
    name = os.path.join(FOLDER, "hardware.json")
    subprocess.run([FSDP, "plan", "calibrate", "--ranks", str(RANKS), "--seconds", str(seconds), "--out", name],
                   check=True, stdout=subprocess.DEVNULL)
    return name


def draw(generator, kind):
    """A decoder of 3M to 20M parameters, about 1,024 tokens for each rank, and how it is spread."""
    pick = generator.choice
    hidden, length = pick([256, 384, 512]), pick([128, 256, 512])
    heads = hidden // 64
    sequences = 1024 // length * pick([1, 2])  # of a rank
    settings = {"model.hidden_size": hidden, "model.layers": pick([4, 6, 8]), "model.heads": heads,
                "model.kv_heads": heads // 2 if heads % 2 == 0 else heads, "model.ffn_size": hidden * pick([2, 3, 4]),
                "model.vocab_size": pick([2048, 4096, 8192]), "data.sequence_length": length,
                "train.batch_sequences": RANKS * sequences, "train.microbatch_sequences": pick([1, 2]),
                "train.recompute": pick(["none", "block"]),
                "shard.strategy": pick(["optim", "optim_grads", "optim_grads_params"])}
    if kind in ("tp", "cp"):
        settings["mesh." + kind] = RANKS
        settings["model.kv_heads"] = heads
        settings["model.heads"] = heads
        if kind == "tp" and heads % RANKS != 0:
            settings.update({"model.hidden_size": 512, "model.heads": 8, "model.kv_heads": 4})
    if kind == "ep":
        settings.update({"model.family": "mixtral", "model.experts": 4, "model.ffn_size": hidden, "mesh.ep": RANKS})
    if kind == "pp":
        order = pick(["1f1b", "interleaved", "zero_bubble"])
        settings.update({"mesh.pp": RANKS, "mesh.schedule": order, "train.microbatch_sequences": 1})
        if order == "interleaved":
            settings["mesh.stages_per_rank"] = 2
        if order == "zero_bubble":
            settings["train.recompute"] = "none"
    return settings


def text_of(kind, settings):
    where = "" if kind == "data" else f"{kind} {RANKS}"
    if kind == "pp":
        where += f" ({settings['mesh.schedule']})"
    sequences = settings["train.batch_sequences"]
    return (f"{settings['model.hidden_size']} x {settings['model.layers']}, {where or 'shard 2'}, {settings['shard.strategy']}, "
            f"{sequences} x {settings['data.sequence_length']} tokens by {settings['train.microbatch_sequences']}, "
            f"recompute {settings['train.recompute']}")


def train(settings, hardware, steps):
    """Milliseconds of a step, of all but the first three the median, and those that were planned; then the share of rows that
    the experts of the busiest rank got, over an equal one, and what is planned with it."""
    options = {**settings, "data.path": os.path.join(FOLDER, "data"), "data.heldout_split": "", "train.steps": steps,
               "train.warmup_steps": 1, "train.log_every": steps, "output.folder": os.path.join(FOLDER, "run"),
               "output.overwrite": "replace", "output.hardware": hardware}
    done = subprocess.run([FSDP, "launch", "--nproc", str(RANKS), "--", "train",
                           *(f"--{key}={value}" for key, value in options.items())],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = DONE.search(done.stdout)
    if found is None:
        raise SystemExit(f"no line about the plan:\n{options}\n{done.stdout}")
    busy = BUSY.search(done.stdout)
    return float(found[1]), float(found[2]), (float(busy[1]), float(busy[2])) if busy else (1, float(found[2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="random configurations, the kinds in turns")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS, help="kinds of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=13, help="of each run; the median of all but three counts")
    parser.add_argument("--calibration-seconds", type=float, default=6)
    parser.add_argument("--calibrate-every", type=int, default=4, help="so many runs: a machine's speed changes")
    options = parser.parse_args()
    prepare_headers(os.path.join(FOLDER, "data"))
    begin, errors = time.time(), []
    print("| run | planned, ms | took, ms | error | busiest experts | planned with them, ms | error |\n|---|---|---|---|---|---|---|")
    for number in range(options.runs):
        if number % options.calibrate_every == 0:
            hardware = calibrate(options.calibration_seconds)
        kind = options.only[number % len(options.only)]
        settings = draw(random.Random(f"{options.seed} {number}"), kind)
        took, planned, (share, planned_with_share) = train(settings, hardware, options.steps)
        errors.append((100 * (planned_with_share / took - 1), text_of(kind, settings)))
        shared = f"{share:.2f} | {planned_with_share:.1f} | {errors[-1][0]:+.1f} %" if kind == "ep" else " |  | "
        print(f"| {text_of(kind, settings)} | {planned:.1f} | {took:.1f} | {100 * (planned / took - 1):+.1f} % | {shared} |", flush=True)
    mean = sum(abs(error) for error, _ in errors) / len(errors)
    worst = max(errors, key=lambda each: abs(each[0]))
    within = sum(abs(error) <= 15 for error, _ in errors)
    print(f"\n{len(errors)} runs in {time.time() - begin:.0f} s: mean of absolute errors {mean:.1f} %, worst {worst[0]:+.1f} % "
          f"({worst[1]}), {within} within 15 %")


if __name__ == "__main__":
    main()
