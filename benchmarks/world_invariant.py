"""What train.world_invariant costs: steps with and without it on 1, 2 and 4 ranks, same microbatches, interleaved, and
whether the losses and norms of all worlds are the same bits. `python3 benchmarks/world_invariant.py` prints the table of
docs/precision.md. Costs are told by processor time as well, which others on the machine disturb less."""

import argparse
import json
import os
import resource
import statistics
import subprocess

from harness import ROOT, prepare_headers

FSDP = os.path.join(ROOT, "bin", "fsdp")
FOLDER = os.path.join(ROOT, "build", "bench", "world_invariant")
MODEL = {"model.hidden_size": 384, "model.layers": 6, "model.heads": 6, "model.kv_heads": 3, "model.ffn_size": 1024,
         "data.sequence_length": 256, "train.batch_sequences": 8, "train.microbatch_sequences": 1, "train.log_every": 1,
         "data.heldout_split": "", "train.peak_tflops": 1, "train.warmup_steps": 1}
LEARNED = 2  # steps that learn the order of units and warm caches
RUNS = [("fp32", 1, "optim_grads_params"), ("fp32", 2, "optim_grads_params"), ("fp32", 2, "optim"),
        ("fp32", 4, "optim_grads_params"), ("bf16", 1, "optim_grads_params"), ("bf16", 2, "optim_grads_params")]


def train(ranks, settings, steps):
    """Median milliseconds of a step, processor seconds of the run, and the ledger, which has the bits of losses and
    norms."""
    output = os.path.join(FOLDER, "run")
    options = {**MODEL, **settings, "train.steps": steps, "data.path": os.path.join(FOLDER, "data"),
               "output.folder": output, "output.overwrite": "replace"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([FSDP, "launch", "--nproc", str(ranks), "--", "train",
                    *(f"--{key}={value}" for key, value in options.items())],
                   check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(output, "metrics.jsonl")) as file:
        times = [line["step_ms"] for line in map(json.loads, file) if "step_ms" in line]
    with open(os.path.join(output, "ledger.jsonl")) as file:
        ledger = file.read()
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return statistics.median(times[min(LEARNED, steps - 1):]), seconds, ledger


def compare(ranks, settings, steps, rounds):
    """Without and with it, in turns; the cost is the median over rounds."""
    tree_settings = {**settings, "train.world_invariant": "true"}
    start = {True: train(ranks, tree_settings, 1)[1], False: train(ranks, settings, 1)[1]}
    times, seconds, ledgers = {True: [], False: []}, {True: [], False: []}, set()
    for _ in range(rounds):
        for is_tree in (False, True):
            time, used, ledger = train(ranks, tree_settings if is_tree else settings, steps)
            times[is_tree].append(time)
            seconds[is_tree].append(used - start[is_tree])
            if is_tree:
                ledgers.add(ledger)
    cost = lambda values: statistics.median(tree / plain - 1 for plain, tree in zip(values[False], values[True]))
    return statistics.median(times[False]), statistics.median(times[True]), cost(times), cost(seconds), ledgers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prepare_headers(os.path.join(FOLDER, "data"))
    print("| precision | ranks | strategy | a step without, ms | with, ms | cost | cost in processor time |\n"
          "|---|---|---|---|---|---|---|")
    ledgers = {}
    for precision, ranks, strategy in RUNS:
        settings = {"shard.precision": precision, "shard.strategy": strategy}
        plain, tree, cost, cost_of_processor, seen = compare(ranks, settings, options.steps, options.rounds)
        ledgers.setdefault(precision, set()).update(seen)
        print(f"| {precision} | {ranks} | `{strategy}` | {plain:.0f} | {tree:.0f} | {100 * cost:+.1f} % | "
              f"{100 * cost_of_processor:+.1f} % |", flush=True)
    same = all(len(each) == 1 for each in ledgers.values())
    print("\nsame bits on all: " + ("yes" if same else "no"))
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
