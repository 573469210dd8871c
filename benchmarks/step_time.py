"""The table of training steps: ours against FSDP2, FSDP2 with a C library that keeps its memory, and DDP."""

from statistics import median

from harness import (KEEPS_MEMORY, TRANSPORTS, entry, middle, ours, peak_proportional_bytes, peer, pooled, print_table,
                     relative_difference, run, script, spread, write_json)

MIB = 1 << 20
# Ranks, dtype, tokens per rank.
CASES = [(ranks, dtype, tokens) for ranks, dtype, lengths in
         ((2, "fp32", (16, 128, 1024, 4096)), (2, "bf16", (16, 128, 1024, 4096)), (1, "fp32", (16, 128)),
          (4, "fp32", (16, 128))) for tokens in lengths]
# How closely losses agree after as many steps: orders of sums, or roundings to bf16.
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}


def amount(options, tokens):
    """Rounds, steps before, steps timed: long steps are few."""
    rounds, warmup, steps = {16: (3, 3, 7), 128: (3, 3, 7), 1024: (2, 1, 3), 4096: (1, 1, 1)}.get(tokens, (1, 1, 2))
    return options.rounds or rounds, options.warmup or warmup, options.steps or steps


def contenders(dtype, ranks, args):
    bf16 = ("--bf16",) if dtype == "bf16" else ()
    result = {"ours": (ours("step_time", *args, *bf16), None), "FSDP2": (peer("step_time", *args, *bf16), None)}
    if ranks == 2:
        result["FSDP2 kept"] = (peer("step_time", *args, *bf16), KEEPS_MEMORY)
    if ranks == 2 and dtype == "fp32":
        result["DDP"] = (script("step_time_fsdp2", *args, "--ddp"), None)
    return result


def floor_of(ranks, dtype, args):
    """As many processes that do not meet: what remains if communication were as fast as a copy, and each rank updated
    its shard only. Also their result."""
    bf16 = ("--bf16",) if dtype == "bf16" else ()
    alone = run(ours("step_time", "--plain", *bf16, "--floor-ranks", str(ranks), *args), ranks=ranks, meet=False)
    return (median(alone["forward_ms"]) + median(alone["backward_ms"]) + median(alone["optimizer_ms"]) / ranks +
            alone["copy_floor_ms"]), alone


def measure(options, ranks, dtype, tokens):
    rounds, warmup, steps = amount(options, tokens)
    args = ("--tokens", str(tokens), "--warmup", str(warmup), "--steps", str(steps))
    runs = {}
    for _ in range(rounds):
        for who, (command, variables) in contenders(dtype, ranks, args).items():
            runs.setdefault(who, []).append(run(command, ranks=ranks, variables=variables))
    floor, alone = floor_of(ranks, dtype, args)
    result = {"case": (ranks, dtype, tokens), "runs": runs, "floor": floor, "alone": alone}
    if tokens <= 128 and ranks > 1:
        short = ("--tokens", str(tokens), "--warmup", "2", "--steps", "3", *(("--bf16",) if dtype == "bf16" else ()))
        result["pss"] = [peak_proportional_bytes(who("step_time", *short), ranks=ranks) for who in (ours, peer)]
    return result


def step_time(options):
    results, entries = [], []
    for case in CASES:
        ranks, dtype, tokens = case
        chosen = ranks in (options.ranks or (ranks,)) and dtype in (options.dtype or (dtype,))
        if chosen and tokens in (options.tokens or (tokens,)):
            results.append(measure(options, *case))
            entries += entries_of(results[-1])
            write_json("step_time", entries)
            print_steps(results[-1:])
    if not results:
        return
    print(f"\nLlama 57.9M, ranks of 1 thread, {TRANSPORTS}, ZeRO-3, AdamW; contenders interleaved; ms per step, median "
          "[min-max]\nkept: glibc told to keep freed memory. floor: forward and backward of unsharded ranks beside each "
          "other, 1/ranks of AdamW, the bytes copied once")
    print_steps(results)
    print_parts(results)
    print_memory([result for result in results if "pss" in result])


def entries_of(result):
    ranks, dtype, tokens = result["case"]
    name = f"step_time/{ranks}_ranks/{dtype}/{tokens}_tokens"
    runs, mine = result["runs"], middle(result["runs"]["ours"], "step_ms")
    entries = [entry(f"{name}/{who.replace(' ', '_')}", mine, middle(runs[who], "step_ms"), "ms", result["floor"])
               for who in runs if who != "ours"]
    if "pss" in result:
        entries.append(entry(f"{name}/pss_of_all_ranks", result["pss"][0] / MIB, result["pss"][1] / MIB, "MiB"))
    return entries


def print_steps(results):
    rows = [("ranks", "dtype", "tokens", "ours", "FSDP2", "ratio", "FSDP2 kept", "ratio", "DDP", "ratio", "floor", "share",
             "losses differ", "equal")]
    for result in results:
        ranks, dtype, tokens = result["case"]
        runs = result["runs"]
        mine = middle(runs["ours"], "step_ms")
        cells = []
        for who in ("FSDP2", "FSDP2 kept", "DDP"):
            cells += [spread(pooled(runs[who], "step_ms")), f"{middle(runs[who], 'step_ms') / mine:.2f}"] if who in runs else ["-", "-"]
        difference = max(relative_difference(run[0][key], runs["ours"][0][key]) for who, run in runs.items() if who != "ours"
                         for key in ("first_loss", "last_loss"))
        rows.append((str(ranks), dtype, str(tokens), spread(pooled(runs["ours"], "step_ms")), *cells,
                     f"{result['floor']:.0f}", f"{100 * result['floor'] / mine:.0f}%", f"{difference:.0e}",
                     "yes" if difference < TOLERANCE[dtype] else "NO"))
    print_table(rows)


def print_parts(results):
    keys = ("forward_ms", "backward_ms", "optimizer_ms", "cpu_ms", "page_faults")
    rows = [("ranks", "dtype", "tokens", "who", "forward", "backward", "optimizer", "CPU time", "page faults",
             "exposed gather", "exposed reduce")]
    for result in results:
        ranks, dtype, tokens = result["case"]
        for who, runs in (*result["runs"].items(), ("not sharded", [result["alone"]])):
            exposed = [f"{median(r[key] for r in runs):.0f}" if key in runs[0] else "-"
                       for key in ("exposed_gather_ms", "exposed_reduce_ms")]
            rows.append((str(ranks), dtype, str(tokens), who, *(f"{middle(runs, key):.0f}" for key in keys), *exposed))
    print("Where a step goes, ms on rank 0 (CPU time: all threads of the process)")
    print_table(rows)


def print_memory(results):
    if not results:
        return
    formulas = [result["runs"]["ours"][0]["memory_formula"] for result in results]
    rows = [("peak MiB", *("{} ranks {} {}".format(*result["case"]) for result in results))]
    for term in [term for term in formulas[0] if term != "total"] + ["total"]:
        rows.append((f"{term}, per rank", *(f"{formula.get(term, 0) / MIB:.0f}" for formula in formulas)))
    for who in ("ours", "FSDP2"):
        rows.append((f"resident per rank, {who}", *(f"{r['runs'][who][0]['peak_bytes'] / MIB:.0f}" for r in results)))
    for i, who in enumerate(("ours", "FSDP2")):
        rows.append((f"all ranks (PSS), {who}", *(f"{result['pss'][i] / MIB:.0f}" for result in results)))
    rows.append(("ours / FSDP2", *(f"{result['pss'][0] / result['pss'][1]:.2f}" for result in results)))
    print_table(rows)
