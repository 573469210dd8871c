"""The table of `fsdp prepare`: text to tokens beside the disk, the tokenizer alone, and the same work in Python with Hugging
Face's tokenizers (where that package is installed).

    python3 benchmarks/prepare.py --tokenizer FOLDER [--source FOLDER] [--megabytes 1000] [--threads 1 2] [--rounds 3]

Text: the readable files below --source, again and again until there are enough. Writes build/bench/prepare.json."""

import argparse
import importlib.util
import json
import os
import shutil
from statistics import median

from harness import ROOT, entry, ours, print_table, run, script, stop_what_was_started, write_json

FOLDER = os.path.join(ROOT, "build", "bench", "prepare")
LONGEST = 20000  # characters of a document
BINARY = "\0"


def documents(source):
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if BINARY not in text and text.strip():
                yield from (text[i:i + LONGEST] for i in range(0, len(text), LONGEST))


def write_corpus(source, num_bytes):
    path = os.path.join(FOLDER, "corpus", "text.jsonl")
    os.makedirs(os.path.dirname(path))
    written = 0
    with open(path, "w", encoding="utf-8") as out:
        while written < num_bytes:
            before = written
            for text in documents(source):
                line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
                out.write(line)
                written += len(line.encode())
                if written >= num_bytes:
                    break
            if written == before:
                raise SystemExit(f"prepare: no text below {source}; name another --source")
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--source", default="/usr/include")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    stop_what_was_started()
    shutil.rmtree(FOLDER, ignore_errors=True)
    path = write_corpus(options.source, options.megabytes * 10**6)
    has_peer = importlib.util.find_spec("tokenizers") is not None and os.path.isdir(options.tokenizer)
    rows = [("threads", "prepare MB/s", "per core", "of tokenizer", "tokenizer MB/s", "disk MB/s", "peer MB/s", "ratio")]
    entries = []
    for threads in sorted(set(options.threads)):
        args = ("--input", path, "--tokenizer", options.tokenizer, "--folder", FOLDER, "--threads", str(threads))
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine.append(run(ours("prepare", *args), meet=False))
            if has_peer:
                theirs.append(run(script("prepare_hf", *args), meet=False))
        speed, alone, disk = (median(r[key] for r in mine) for key in ("mb_per_s", "tokenizer_mb_per_s", "disk_mb_per_s"))
        peer = median(r["mb_per_s"] for r in theirs) if theirs else None
        rows.append((str(threads), f"{speed:.1f}", f"{speed / threads:.1f}", f"{100 * speed / alone:.0f}%", f"{alone:.1f}",
                     f"{disk:.0f}", f"{peer:.2f}" if peer else "-", f"{speed / peer:.1f}" if peer else "-"))
        if peer:
            entries.append(entry(f"prepare/{threads}_threads", 1e3 / speed, 1e3 / peer, "ms per MB", 1e3 / alone))
    print(f"\n{options.megabytes} MB of JSON lines, {mine[0]['text_bytes'] / mine[0]['tokens']:.2f} bytes per token; median of "
          f"{options.rounds} rounds")
    print_table(rows)
    write_json("prepare", entries)
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
