"""The table of generation: ours against transformers' generate(), on the same threads, in turns."""

import os
import shutil
import subprocess

from harness import ROOT, entry, middle, ours, pooled, print_table, run, script, spread, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "generation")
# Weights as they are stored, dtype of the computation, rows.
CASES = [(stored, precision, rows) for stored, precision in (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"))
         for rows in (1, 8)]


def equal_tokens(mine, theirs):
    """Share of tokens that both took, up to the first difference of each row."""
    same = total = 0
    for a, b in zip(mine["ids"], theirs["ids"]):
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
        same, total = same + first, total + len(a)
    return same / total


def generation(options):
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    threads = str(len(os.sched_getaffinity(0)))
    for stored in ("fp32", "bf16"):
        subprocess.run(ours("generation", "--model", os.path.join(FOLDER, stored), "--write", stored), cwd=ROOT, check=True)
    rows, entries = [("stored", "dtype", "rows", "ms per token", "transformers", "ratio", "first token", "transformers", "ratio",
                      "tokens/s", "read floor", "share", "equal tokens")], []
    for stored, precision, count in CASES:
        if options.dtype and precision not in options.dtype:
            continue
        args = ("--model", os.path.join(FOLDER, stored), "--precision", precision, "--rows", str(count), "--threads", threads, "--rounds", "2")
        mine, theirs = [], []
        for _ in range(options.rounds or 3):
            mine.append(run(ours("generation", *args), meet=False))
            theirs.append(run(script("generation_transformers", *args), meet=False))
        token, peer_token = middle(mine, "token_ms"), middle(theirs, "token_ms")
        first, peer_first = middle(mine, "first_ms"), middle(theirs, "first_ms")
        floor = min(result["read_ms"] for result in mine)
        rows.append((stored, precision, str(count), spread1(pooled(mine, "token_ms")), spread1(pooled(theirs, "token_ms")),
                     f"{peer_token / token:.2f}", spread(pooled(mine, "first_ms")), spread(pooled(theirs, "first_ms")),
                     f"{peer_first / first:.2f}", f"{1e3 * count / token:.0f}", f"{floor:.1f}", f"{100 * floor / token:.0f}%",
                     f"{100 * equal_tokens(mine[-1], theirs[-1]):.0f}%"))
        entries += [entry(f"generation/{stored}_{precision}/{count}_rows/token", token, peer_token, "ms", floor),
                    entry(f"generation/{stored}_{precision}/{count}_rows/first_token", first, peer_first, "ms")]
    print(f"\nGeneration, 135M parameters (SmolLM2's shape), {threads} threads, prompts of 32 tokens, 64 new ones, greedy; ms, "
          "median [min-max]\nread floor: ms to read the weights once with all threads")
    print_table(rows)
    write_json("generation", entries)
    shutil.rmtree(FOLDER, ignore_errors=True)


def spread1(values):
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} [{ordered[0]:.1f}-{ordered[-1]:.1f}]"

