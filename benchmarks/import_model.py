"""The table of imports: a Hugging Face folder read into shards, against the safetensors package and the bare disk, in turns."""

import os
import shutil
import subprocess
import sys
from statistics import median

from harness import ROOT, entry, ours, pooled, print_table, relative_difference, run, script, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "import")
CASES = [("smollm2-1.7b", "bf16"), ("smollm2-360m", "fp32")]
RANKS = (1, 2)
MIB = 1 << 20


def import_model(options):
    rows = [("model", "stored", "GB", "ranks", "ours s", "safetensors s", "ratio", "raw s", "share of raw", "beyond the shard MiB",
             "safetensors MiB")]
    entries = []
    for preset, stored in CASES:
        if options.dtype and stored not in options.dtype:
            continue
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.makedirs(FOLDER)
        subprocess.run(ours("import_model", "write", "--folder", FOLDER, "--preset", preset, "--dtype", stored), cwd=ROOT,
                       check=True, stdout=subprocess.DEVNULL)
        os.sync()
        for ranks in options.ranks or RANKS:
            raw, mine, theirs = [], [], []
            for _ in range(options.rounds or 5):
                raw.append(run(ours("import_model", "raw", "--folder", FOLDER), ranks=ranks))
                mine.append(run(ours("import_model", "read", "--folder", FOLDER), ranks=ranks))
                theirs.append(run(script("import_safetensors", "--folder", FOLDER), ranks=ranks))
            if relative_difference(mine[0]["sum"], theirs[0]["sum"]) > 1e-9:
                sys.exit(f"bench: the two read different weights, of sums {mine[0]['sum']} and {theirs[0]['sum']}")
            ways = {way: median(result["read"][way] for result in raw) for way in raw[0]["read"]}
            way = min(ways, key=ways.get)
            shares = sorted(100 * min(r["read"].values()) / m["seconds"][0] for r, m in zip(raw, mine))
            seconds, peer_seconds = median(pooled(mine, "seconds")), median(pooled(theirs, "seconds"))
            rows.append((preset, stored, f"{raw[0]['bytes'] / 1e9:.2f}", str(ranks), in_seconds(mine), in_seconds(theirs),
                         f"{peer_seconds / seconds:.2f}", f"{ways[way]:.2f} ({way})", f"{median(shares):.0f}% [{shares[0]:.0f}-{shares[-1]:.0f}]",
                         *(f"{max(result['extra_bytes'] for result in results) / MIB:.0f}" for results in (mine, theirs))))
            entries.append(entry(f"import/{preset}_{stored}/{ranks}_ranks", 1e3 * seconds, 1e3 * peer_seconds, "ms",
                                 1e3 * ways[way]))
    print("\nImport: a folder of Hugging Face read into fp32 shards, not in the page cache; seconds of the slowest rank, median "
          "[min-max];\nraw: the same files read and thrown away, the fastest way (threads of each process; past the page cache or "
          "through it);\nshare of raw: of the fastest way in the same round; beyond the shard: peak memory of a rank while it reads, less what it had before and its shard")
    print_table(rows)
    write_json("import_model", entries)
    shutil.rmtree(FOLDER, ignore_errors=True)


def in_seconds(results):
    values = sorted(pooled(results, "seconds"))
    return f"{median(values):.2f} [{values[0]:.2f}-{values[-1]:.2f}]"
