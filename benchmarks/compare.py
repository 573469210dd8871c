"""Times our benchmark programs against their PyTorch peers in one run, interleaved, and prints tables.

Called by scripts/bench.sh, which builds and installs what is needed. Writes build/bench/NAME.json: a list of
{name, ours, peer, unit, ratio, floor_share}: ratio says how many times faster ours is, floor_share how near it is to the
least that physics allows (where that is known)."""

import argparse

from checkpoint import SHAPES, checkpoint
from collectives import collectives
from documents import documents
from generation import generation
from harness import (TRANSPORTS, entry, middle, ours, peer, pooled, print_table, relative_difference, run, script, spread,
                     stop_what_was_started, write_json)
from import_model import import_model
from kernels import kernels
from quickstart import quickstart
from roadmap import roadmap
from statistics import median
from step_time import step_time

# Of the functional benchmark. Parameters: vocabulary, hidden, layers, FFN, heads, key heads.
DECODERS = {"4.9M": (8192, 192, 4, 576, 3, 1), "19.7M": (16384, 384, 4, 1152, 6, 3),
            "57.9M": (32000, 512, 8, 1536, 8, 4)}
GROUPS_MIB = (4, 16, 32)


def hook_cost(options):
    rows = [("precision", "ours us", "peer us", "ratio", "bare ours us", "bare peer us")]
    entries = []
    for precision in options.dtype or ("fp32", "bf16"):
        args = ("--precision", precision)
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine.append(run(ours("hook_cost", *args)))
            theirs.append(run(peer("hook_cost", *args)))
        cost = [(middle(runs, "sharded_us") - middle(runs, "bare_us")) / runs[0]["units"] for runs in (mine, theirs)]
        rows.append((precision, f"{cost[0]:.1f}", f"{cost[1]:.1f}", f"{cost[1] / cost[0]:.1f}",
                     *(f"{middle(runs, 'bare_us') / runs[0]['units']:.1f}" for runs in (mine, theirs))))
        entries.append(entry(f"hook_cost/{precision}", cost[0], cost[1], "us"))
    print("\nCost of sharding per unit, forward + backward, above the bare model: 101 units of Linear(8, 8), world of one")
    print_table(rows)
    print("fp32: our gathered weights are the main weights, so nothing is gathered. bf16: we refresh a persistent copy "
          "after an\noptimizer step only. The peer gathers and casts in every pass.")
    write_json("hook_cost", entries)


def curve_difference(runs, reference):
    """Largest relative difference of any loss of any run from the reference's at that step."""
    return max(relative_difference(a, b) for run in runs for a, b in zip(run["losses"], reference["losses"]))


def functional(options):
    table = [("model", "group MiB", "dtype", "DDP ms", "functional ms", "ZeRO-3 ms", "ratio", "PSS DDP", "functional",
              "ZeRO-3", "loss differs", "ZeRO-3")]
    speed = [("model", "dtype", "", "it/s", "tok/s", "peak MiB")]
    entries, tokens = [], options.tokens[0] if options.tokens else 16
    for model, shape in DECODERS.items():
        for dtype in options.dtype or ("fp32", "bf16"):
            args = ("--shape", *map(str, shape), "--dtype", dtype, "--tokens", str(tokens),
                    "--warmup", str(options.warmup), "--steps", str(options.steps))
            groups = ("--groups", *map(str, GROUPS_MIB))
            ddp, mine, zero3 = [], [], []
            for _ in range(options.rounds):
                ddp.append(run(script("ddp", *args, *groups), ranks=2)["runs"])
                mine.append(run(ours("functional", *args, *groups), ranks=2)["runs"])
                zero3.append(run(ours("functional", "--zero3", *args), ranks=2)["runs"][0])
            for i, mib in enumerate(GROUPS_MIB):
                cell = [[runs[i] for runs in ddp], [runs[i] for runs in mine], zero3]
                ms = [middle(runs, "step_ms") for runs in cell]
                pss = [median(r["pss_bytes"] for r in runs) / (1 << 20) for runs in cell]
                differences = [curve_difference(runs, ddp[0][0]) for runs in cell[1:]]
                table.append((model, str(mib), dtype, *(spread(pooled(runs, "step_ms")) for runs in cell),
                              f"{ms[0] / ms[1]:.2f}", *(f"{value:.0f}" for value in pss),
                              *(f"{difference:.0e}" for difference in differences)))
                name = f"functional/{model}/{dtype}/{mib}_mib"
                entries.append(entry(name, ms[1], ms[0], "ms"))
                entries.append(entry(name + "/pss_of_both_ranks", pss[1], pss[0], "MiB"))
                if mib == GROUPS_MIB[1]:
                    entries.append(entry(f"functional/{model}/{dtype}/zero3", ms[2], ms[0], "ms"))
                    for who, value, memory in zip(("DDP", "functional", "ZeRO-3"), ms, pss):
                        speed.append((model, dtype, who, f"{1e3 / value:.1f}", f"{2e3 * tokens / value:.0f}",
                                      f"{memory:.0f}"))
    print(f"\nLlamas, 2 ranks of 1 thread, {TRANSPORTS}, {tokens} tokens per rank, AdamW; {options.rounds} rounds, interleaved; "
          "median [min-max] of a step;\nratio: DDP / functional; PSS: peak MiB of both ranks; loss differs: largest "
          "relative difference from DDP's over the run")
    print_table(table)
    print(f"Groups of {GROUPS_MIB[1]} MiB")
    print_table(speed)
    print("bf16: weights, gradients, optimizer and what travels are bf16 under DDP and functional; under ZeRO-3 what is "
          "gathered is,\nthe rest is fp32. ZeRO-3 has no groups: its columns repeat.")
    write_json("functional", entries)


def main():
    # name -> function, and what --rounds, --warmup and --steps are if they are not given; None: the table decides
    benchmarks = {"step_time": (step_time, None, None, None), "collectives": (collectives, None, None, None),
                  "kernels": (kernels, None, None, None),
                  "hook_cost": (hook_cost, 3, 0, 0), "functional": (functional, 2, 2, 5),
                  "checkpoint": (checkpoint, None, None, None), "documents": (documents, None, None, None),
                  "generation": (generation, None, None, None), "import_model": (import_model, None, None, None),
                  "quickstart": (quickstart, None, None, None), "roadmap": (roadmap, None, None, None)}
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*benchmarks, []], help="default: all")
    parser.add_argument("--tokens", type=int, nargs="+", help="of step_time, any of 16 128 1024 4096; of functional, one")
    parser.add_argument("--ranks", type=int, nargs="+", help="of step_time, any of 1 2 4; of collectives")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"))
    parser.add_argument("--parameters", nargs="+", choices=SHAPES, help="of the models of checkpoint")
    parser.add_argument("--isa", nargs="+", help="of kernels and quickstart: instruction sets, as FSDP_CPU_ISA names them")
    parser.add_argument("--only", help="of kernels: rows whose name contains this")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    stop_what_was_started()
    for name in given.names or benchmarks:
        benchmark, *defaults = benchmarks[name]
        options = argparse.Namespace(**vars(given))
        for key, value in zip(("rounds", "warmup", "steps"), defaults):
            if getattr(given, key) is None:
                setattr(options, key, value)
        benchmark(options)


if __name__ == "__main__":
    main()
