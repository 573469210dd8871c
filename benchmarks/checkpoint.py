"""The tables of checkpoints: ours against torch.distributed.checkpoint and the bare disk, in turns."""

import os
import shutil
import sys
from statistics import median

from harness import ROOT, entry, ours, pooled, print_table, relative_difference, run, script, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "checkpoint")
# Vocabulary, hidden, layers, FFN, heads, key heads.
SHAPES = {"58M": (32000, 512, 8, 1536, 8, 4), "250M": (32000, 1024, 16, 2816, 16, 8), "1B": (32000, 2048, 20, 5632, 32, 4)}
ROUNDS = {"58M": 3, "250M": 3, "1B": 1}
# State, a snapshot of it, and the memory of a bare copy: three times 12 GB is more than the machine of the tables has.
BLOCKING_ONLY = ("1B",)
LOADERS = (2, 1, 4)
TARGETS = {"save": "at least 85% of raw, 2x DCP", "load": "at least 85% of raw", "stall": "at most 1.2x the copy"}


def drop_from_cache(folder):
    os.sync()
    for entry_of_folder in os.scandir(folder):
        number = os.open(entry_of_folder.path, os.O_RDONLY)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)


class Size:
    """What was measured of one size of model: per contender and action the results of the rounds."""

    def __init__(self, name, options):
        self.name, self.rounds = name, options.rounds or ROUNDS[name]
        self.args = ("--shape", *map(str, SHAPES[name]))
        self.warm = name not in BLOCKING_ONLY
        self.raw, self.mine, self.theirs = [], {}, {}

    def call(self, who, action, *args, ranks=2):
        folder = os.path.join(FOLDER, who.__name__)
        os.makedirs(folder, exist_ok=True)
        command = who("checkpoint" if who is ours else "checkpoint_dcp", action, "--folder", folder, *self.args, *args)
        return run(command, ranks=ranks)

    def both(self, action, *args, ranks=2, name=None):
        for who, results in ((ours, self.mine), (script, self.theirs)):
            results.setdefault(name or action, []).append(self.call(who, action, *args, ranks=ranks))

    def measure(self):
        times = ("--times", "1" if self.name in BLOCKING_ONLY else "2")
        for _ in range(self.rounds):
            shutil.rmtree(FOLDER, ignore_errors=True)
            self.raw.append(self.call(ours, "raw"))
            self.both("save", *times)
            for ranks in LOADERS:
                warm = ("--warm",) if self.warm and ranks == 2 else ()
                self.both("load", *times, *warm, ranks=ranks, name=f"load {ranks}")
            self.restart()
            if self.name not in BLOCKING_ONLY:
                self.both("async", *times)
        shutil.rmtree(FOLDER, ignore_errors=True)
        self.check()

    def restart(self):
        for who, saved, results in ((ours, "step-1", self.mine), (script, "saved", self.theirs)):
            if who is script and self.name in BLOCKING_ONLY:
                continue  # with its gradients it does not fit
            drop_from_cache(os.path.join(FOLDER, who.__name__, saved))
            results.setdefault("restart", []).append(self.call(who, "restart"))

    def check(self):
        """What was loaded is what was saved."""
        for results in (self.mine, self.theirs):
            for ranks in LOADERS:
                for saved, loaded in zip(results["save"], results[f"load {ranks}"]):
                    for value in (v for v in loaded["sums"] if relative_difference(v, saved["sum"]) > 1e-9):
                        sys.exit(f"bench: {self.name}: loaded a state of sum {value}, saved one of {saved['sum']}")

    def best_raw(self, kind):
        """Seconds of the fastest way, by its median; which way that is."""
        ways = {way: median(result[kind][way] for result in self.raw) for way in self.raw[0][kind]}
        way = min(ways, key=ways.get)
        return ways[way], way


def in_seconds(values):
    return f"{median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


def gigabytes_per_s(size, seconds):
    return f"{size.raw[0]['bytes'] / seconds / 1e9:.2f}"


def print_disk(sizes):
    ways = [(kind, way) for kind in ("write", "read") for way in sizes[0].raw[0][kind]]
    rows = [("GB/s", "state GB", *(f"{kind} {way}" for kind, way in ways))]
    for size in sizes:
        rows.append((size.name, f"{size.raw[0]['bytes'] / 1e9:.2f}",
                     *(gigabytes_per_s(size, median(result[kind][way] for result in size.raw)) for kind, way in ways)))
    print("\nThe bare disk: as many bytes by 2 processes of 1 or 2 threads, pieces of 16 MiB past the page cache, fsync; "
          "reserved:\nfallocate first; read after the files left the page cache, past it (direct) or through it (cached)")
    print_table(rows)


# Title, action, key of ours, key of the peer's, kind of access to the disk; None: the disk is not asked.
OPERATIONS = [("save", "save", "save", "save", "write"), ("save, peer with 2 threads", "save", "save", "save_threads", "write"),
              ("save behind, start to durable", "async", "total", "total", "write"),
              *((f"load by {ranks}, cold", f"load {ranks}", "cold", "cold", "read") for ranks in LOADERS),
              ("load by 2, first of a process", "load 2", "first", "first", "read"),
              ("load by 2, in page cache", "load 2", "warm", "warm", None)]


def print_operations(sizes):
    rows = [("state of", "operation", "ours s", "DCP s", "ratio", "ours GB/s", "raw GB/s", "share of raw")]
    entries = []
    for size in sizes:
        for title, action, key, peer_key, kind in OPERATIONS:
            if action not in size.mine or key not in size.mine[action][0]:
                continue
            mine, theirs = pooled(size.mine[action], key), pooled(size.theirs[action], peer_key)
            floor = size.best_raw(kind)[0] if kind else None
            raw = (gigabytes_per_s(size, floor), f"{100 * floor / median(mine):.0f}%") if kind else ("-", "-")
            rows.append((size.name, title, in_seconds(mine), in_seconds(theirs), f"{median(theirs) / median(mine):.2f}",
                         gigabytes_per_s(size, median(mine)), *raw))
            entries.append(entry(f"checkpoint/{size.name}/{title}", 1e3 * median(mine), 1e3 * median(theirs), "ms",
                                 1e3 * floor if kind else None))
    print(f"Saved by 2 ranks; seconds of the slowest rank, median [min-max]; ratio: DCP / ours. Targets: save "
          f"{TARGETS['save']}; load {TARGETS['load']}")
    print_table(rows)
    return entries


def stalls(result):
    return [start + finish for start, finish in zip(result["start"], result["finish"])]


def print_stalls(sizes):
    rows = [("state of", "save", "start ms", "finish ms", "stall ms", "copy ms", "stall / copy", "DCP stall ms", "ratio")]
    entries = []
    for size in sizes:
        if "async" not in size.mine:
            continue
        for title, part in (("first", slice(0, 1)), ("later", slice(1, None))):
            mine, theirs = size.mine["async"], size.theirs["async"]
            stall = [1e3 * value for result in mine for value in stalls(result)[part]]
            keys = {key: [1e3 * value for result in mine for value in result[key][part]] for key in ("start", "finish", "copy")}
            peer_stall = [1e3 * value for result in theirs for value in result["stall"][part]]
            rows.append((size.name, title, f"{median(keys['start']):.0f}", f"{median(keys['finish']):.0f}", in_ms(stall),
                         in_ms(keys["copy"]), f"{median(stall) / median(keys['copy']):.2f}", in_ms(peer_stall),
                         f"{median(peer_stall) / median(stall):.2f}"))
            entries.append(entry(f"checkpoint/{size.name}/stall of a {title} save", median(stall), median(peer_stall), "ms",
                                 median(keys["copy"])))
    if entries:
        print("Saving behind the training: how long it stands still, against a bare copy of the same memory in the same "
              f"process. Target: {TARGETS['stall']}.\nThe first save, and the first copy, make the memory they copy to; "
              "finish: once the files are on the disk")
        print_table(rows)
    for name in BLOCKING_ONLY:
        if any(size.name == name for size in sizes):
            print(f"{name}: saved blocking only; its state and a snapshot of it do not fit into the memory of the machine.\n")
    return entries


def in_ms(values):
    return f"{median(values):.0f} [{min(values):.0f}-{max(values):.0f}]"


def print_restarts(sizes):
    parts = ("start", "build", "load", "step", "total")
    rows = [("state of", "who", *(f"{part} s" for part in parts), "load / total", "bare read s")]
    entries = []
    for size in sizes:
        for who, results in (("ours", size.mine), ("DCP", size.theirs)):
            if "restart" not in results:
                continue
            values = {part: median(result[part] for result in results["restart"]) for part in parts}
            rows.append((size.name, who, *(f"{values[part]:.2f}" for part in parts),
                         f"{100 * values['load'] / values['total']:.0f}%", f"{size.best_raw('read')[0]:.2f}"))
        if "restart" in size.theirs:
            totals = [median(result["total"] for result in results["restart"]) for results in (size.mine, size.theirs)]
            entries.append(entry(f"checkpoint/{size.name}/restart to first step", 1e3 * totals[0], 1e3 * totals[1], "ms",
                                 1e3 * size.best_raw("read")[0]))
    print("From the start of the processes to the end of the first step (2 ranks, 16 tokens each), files not in the cache; "
          "start: until the ranks have met")
    print_table(rows)
    return entries


def checkpoint(options):
    sizes = []
    try:
        for name in options.parameters or SHAPES:
            sizes.append(Size(name, options))
            sizes[-1].measure()
            print_disk(sizes[-1:])
            entries = print_operations(sizes[-1:]) + print_stalls(sizes[-1:]) + print_restarts(sizes[-1:])
            write_json("checkpoint", entries)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    if len(sizes) > 1:
        print("\nAll of it")
        print_disk(sizes)
        print_operations(sizes), print_stalls(sizes), print_restarts(sizes)
