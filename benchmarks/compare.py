"""Times our benchmark programs against their PyTorch peers in one run, interleaved, and prints a table.

Called by scripts/bench.sh, which builds and installs what is needed. Writes build/bench/NAME.json: a list of
{name, ours, peer, unit, ratio}, where ratio says how many times faster ours is."""

import argparse
import json
import os
import socket
import signal
import subprocess
import sys
import threading
import time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, os.environ.get("FSDP_BUILD", "build/release"), "bin")
TOKENS = (16, 128, 1024)
DEADLINE_S = 600
TRANSPORTS = f"ours over {'Gloo' if os.environ.get('FSDP_TRANSPORT') == 'gloo' else 'shared memory'}, peer over Gloo"
# Of the functional benchmark. Parameters: vocabulary, hidden, layers, FFN, heads, key heads.
DECODERS = {"4.9M": (8192, 192, 4, 576, 3, 1), "19.7M": (16384, 384, 4, 1152, 6, 3),
            "57.9M": (32000, 512, 8, 1536, 8, 4)}
GROUPS_MIB = (4, 16, 32)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(command, ranks=1, meet=True, watch=None):
    """Runs `command` once per rank, at the same time, and returns the JSON that rank 0 printed. `watch` gets the processes."""
    port, processes = str(free_port()), []
    for rank in range(ranks):
        env = dict(os.environ, OMP_NUM_THREADS="1")
        if meet:
            env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        processes.append(subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE))
    watcher = threading.Thread(target=watch, args=(processes,)) if watch else None
    if watcher:
        watcher.start()
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
        if watcher:
            watcher.join()
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"bench: failed: {' '.join(command)}")
    return json.loads(outputs[0].splitlines()[-1])


def proportional_bytes(pid):
    """Resident bytes of a process in which pages shared by n processes count 1/n; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def peak_proportional_bytes(command, ranks):
    """Largest sum over the ranks that was seen while `command` ran. Looking costs time, so nothing is timed meanwhile."""
    peak = 0

    def look(processes):
        nonlocal peak
        while any(process.poll() is None for process in processes):
            peak = max(peak, sum(proportional_bytes(process.pid) for process in processes))
            time.sleep(0.02)

    run(command, ranks=ranks, watch=look)
    return peak


def ours(name, *args):
    return [os.path.join(BIN, name), *args]


def script(name, *args):
    return [sys.executable, "-W", "ignore", os.path.join(ROOT, "benchmarks", "peer", name + ".py"), *args]


def peer(name, *args):
    return script(name + "_fsdp2", *args)


def spread(values):
    return f"{median(values):.0f} [{min(values):.0f}-{max(values):.0f}]"


def pooled(runs, key):
    return [value for result in runs for value in result[key]]


def middle(runs, key):
    return median(pooled(runs, key))


def relative_difference(a, b):
    return abs(a - b) / max(abs(b), 1e-30)


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    print(flush=True)


def write_json(name, entries):
    folder = os.path.join(ROOT, "build", "bench")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    known = {}
    if os.path.exists(path):
        with open(path) as file:
            known = {entry["name"]: entry for entry in json.load(file)}
    known.update((entry["name"], entry) for entry in entries)
    with open(path, "w") as file:
        json.dump(list(known.values()), file, indent=1)


def entry(name, mine, theirs, unit):
    return {"name": name, "ours": round(mine, 2), "peer": round(theirs, 2), "unit": unit, "ratio": round(theirs / mine, 3)}


def step_time(options):
    rows = [("tokens", "ours ms", "peer ms", "ratio", "floor ms", "of floor", "1 rank ms", "loss ours", "loss peer", "equal")]
    entries, parts, memory = [], [], []
    for tokens in options.tokens:
        args = ("--tokens", str(tokens), "--warmup", str(options.warmup), "--steps", str(options.steps))
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine.append(run(ours("step_time", *args), ranks=2))
            theirs.append(run(peer("step_time", *args), ranks=2))
        # Two processes that do not meet: what remains if communication were as fast as a copy.
        alone = run(ours("step_time", "--plain", *args), ranks=2, meet=False)
        single = run(ours("step_time", "--plain", *args), ranks=1, meet=False)
        floor = (median(alone["forward_ms"]) + median(alone["backward_ms"]) + median(alone["optimizer_ms"]) / 2 +
                 alone["copy_floor_ms"])
        our_ms, peer_ms = pooled(mine, "step_ms"), pooled(theirs, "step_ms")
        difference = max(relative_difference(mine[0][key], theirs[0][key]) for key in ("first_loss", "last_loss"))
        rows.append((str(tokens), spread(our_ms), spread(peer_ms), f"{median(peer_ms) / median(our_ms):.2f}",
                     f"{floor:.0f}", f"{100 * floor / median(our_ms):.0f}%", f"{median(single['step_ms']):.0f}",
                     *(f"{r[0]['first_loss']:.4f} -> {r[0]['last_loss']:.4f}" for r in (mine, theirs)),
                     f"{'yes' if difference < 1e-5 else 'NO'} ({difference:.0e})"))
        entries.append(entry(f"step_time/{tokens}_tokens", median(our_ms), median(peer_ms), "ms"))
        parts.append((tokens, mine, theirs, alone))
        short = ("--tokens", str(tokens), "--warmup", "2", "--steps", "3")
        pss = [peak_proportional_bytes(who("step_time", *short), ranks=2) for who in (ours, peer)]
        entries.append(entry(f"step_time/{tokens}_tokens/pss_of_both_ranks", pss[0] / (1 << 20), pss[1] / (1 << 20), "MiB"))
        memory.append((tokens, mine[0], theirs[0], pss))
    print(f"\nLlama 57.9M fp32, 2 ranks of 1 thread, {TRANSPORTS}, ZeRO-3, AdamW; {options.rounds} rounds, interleaved; "
          "median [min-max] of a step")
    print_table(rows)
    print_parts(parts)
    print_memory(memory)
    write_json("step_time", entries)


def print_parts(parts):
    rows = [("tokens", "who", "forward", "backward", "optimizer", "CPU time", "page faults", "exposed gather", "exposed reduce")]
    for tokens, mine, theirs, alone in parts:
        for who, runs in (("ours", mine), ("peer", theirs), ("not sharded", [alone])):
            exposed = [f"{median(r[key] for r in runs):.0f}" if key in runs[0] else "-"
                       for key in ("exposed_gather_ms", "exposed_reduce_ms")]
            rows.append((str(tokens), who, *(f"{middle(runs, key):.0f}"
                                             for key in ("forward_ms", "backward_ms", "optimizer_ms", "cpu_ms", "page_faults")),
                         *exposed))
    print("Where a step goes, ms on rank 0 (CPU time: all threads of the process)")
    print_table(rows)


def print_memory(memory):
    mib = 1 << 20
    terms = list(memory[0][1]["memory_formula"])
    terms.remove("total")
    rows = [("peak resident MiB per rank", *(f"{tokens} tokens" for tokens, *_ in memory))]
    for term in terms + ["total"]:
        rows.append((term, *(f"{mine['memory_formula'][term] / mib:.0f}" for _, mine, *_ in memory)))
    rows.append(("measured, ours", *(f"{mine['peak_bytes'] / mib:.0f}" for _, mine, *_ in memory)))
    rows.append(("measured, peer", *(f"{theirs['peak_bytes'] / mib:.0f}" for _, _, theirs, _ in memory)))
    rows.append(("both ranks (PSS), ours", *(f"{pss[0] / mib:.0f}" for *_, pss in memory)))
    rows.append(("both ranks (PSS), peer", *(f"{pss[1] / mib:.0f}" for *_, pss in memory)))
    print_table(rows)


def hook_cost(options):
    rows = [("precision", "ours us", "peer us", "ratio", "bare ours us", "bare peer us")]
    entries = []
    for precision in ("fp32", "bf16"):
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
    entries, tokens = [], options.tokens[0]
    for model, shape in DECODERS.items():
        for dtype in ("fp32", "bf16"):
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
    # name -> function, and what --rounds, --warmup and --steps are if they are not given
    benchmarks = {"step_time": (step_time, 3, 3, 7), "hook_cost": (hook_cost, 3, 0, 0),
                  "functional": (functional, 2, 2, 5)}
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*benchmarks, []], help="default: all")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="functional takes the first only")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that run() stops what it started
    for name in given.names or benchmarks:
        benchmark, *defaults = benchmarks[name]
        options = argparse.Namespace(**vars(given))
        for key, value in zip(("rounds", "warmup", "steps"), defaults):
            if getattr(given, key) is None:
                setattr(options, key, value)
        benchmark(options)


if __name__ == "__main__":
    main()
