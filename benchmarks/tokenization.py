#!/usr/bin/env python3
"""Times our tokenizers against the Python package `tokenizers`: the same documents, one core each, in turns.

    python3 benchmarks/tokenization.py                                  tokenizers trained on the text, 32768 tokens
    python3 benchmarks/tokenization.py --tokenizer FOLDER --text FILES  a tokenizer and text of your own

Needs `tokenizers` (pip install tokenizers==0.23.3) and build/release/bin/tokenization (or FSDP_BUILD). The peer runs its
fastest call, encode_batch_fast, with its threads off; what it takes to make Python lists of the ids is not counted. Checks
that both give the same ids, prints a table, and writes build/bench/tokenization.json.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests/interop")]

from harness import BIN, entry, print_table, write_json
from mixed_text import Mixer
from tokenizer_variants import GPT2, LLAMA2_DECODER, LLAMA3, MARK, byte_level, characters, split, train
from tokenizers import Tokenizer, normalizers, pre_tokenizers

KINDS = {
    "llama3": lambda: byte_level(split(LLAMA3), model={"ignore_merges": True}),
    "qwen2": lambda: byte_level(split(LLAMA3.replace("{1,3}", "")), normalizer=normalizers.NFC()),
    "gpt2": lambda: byte_level(split(GPT2)),
    "smollm2": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), split(GPT2)),
    "llama2": lambda: characters(
        normalizer=normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
        decoder=LLAMA2_DECODER, model={"byte_fallback": True, "fuse_unk": True}),
}


def machine_text(num_bytes, seed):
    """Documents from files of this machine: code and prose, mostly English."""
    mixer, texts = Mixer(seed), []
    while num_bytes > 0:
        texts.append(mixer.from_file())
        num_bytes -= len(texts[-1].encode())
    return texts


def trained(kind, vocab_size, folder):
    """A tokenizer of `kind`, kept for the next run."""
    path = folder / f"{kind}-{vocab_size}"
    if not (path / "tokenizer.json").exists():
        variant = KINDS[kind]()
        # Without a pre-tokenizer the peer's trainer would look at whole texts as words.
        plain = dict(variant, pre=pre_tokenizers.Metaspace(MARK, "never", True)) if kind == "llama2" else variant
        content = json.loads(train(plain, machine_text(16_000_000, seed=7), vocab_size).to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
        content["model"].update(variant.get("model", {}))
        if kind == "llama2":
            content["pre_tokenizer"] = None
        path.mkdir(parents=True, exist_ok=True)
        (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def time_peer(tokenizer, texts):
    start = time.perf_counter()
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return time.perf_counter() - start, encodings


def compare(folder, texts, rounds):
    peer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mine, theirs = [], []
    with tempfile.TemporaryDirectory() as scratch:
        documents, ids = pathlib.Path(scratch) / "documents", pathlib.Path(scratch) / "ids"
        with open(documents, "wb") as file:
            for text in texts:
                file.write(struct.pack("<I", len(text.encode())) + text.encode())
        for _ in range(rounds):
            command = [os.path.join(BIN, "tokenization"), folder, documents, "--ids", ids]
            mine.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            seconds, encodings = time_peer(peer, texts)
            theirs.append(seconds)
        expected = b"".join(struct.pack(f"<I{len(e.ids)}i", len(e.ids), *e.ids) for e in encodings)
        if ids.read_bytes() != expected:
            sys.exit(f"tokenization: {folder.name}: other ids than the peer's; see tests/interop/tokenizer_differential.py")
    return min(run["encode_s"] for run in mine), min(theirs), mine[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, nargs="+", help="folders of tokenizer.json")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--text", type=pathlib.Path, nargs="+")
    parser.add_argument("--mb", type=float, default=16, help="of text from this machine")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.text:
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in given.text]
    else:
        texts = machine_text(int(given.mb * 1e6), seed=3)
    folders = given.tokenizer or [trained(kind, given.vocab_size, ROOT / "build/bench/tokenizers") for kind in given.kinds]
    rows, entries = [("tokenizer", "ours MB/s", "tokenizers MB/s", "ratio", "bytes per token", "load s")], []
    for folder in folders:
        ours_s, peer_s, run = compare(folder, texts, given.rounds)
        speed = [run["bytes"] / 1e6 / seconds for seconds in (ours_s, peer_s)]
        rows.append((folder.name, f"{speed[0]:.1f}", f"{speed[1]:.1f}", f"{peer_s / ours_s:.1f}",
                     f"{run['bytes'] / run['ids']:.2f}", f"{run['load_s']:.2f}"))
        entries.append(entry(f"tokenization/{folder.name}", 1e3 * ours_s, 1e3 * peer_s, "ms"))
    total = sum(len(text.encode()) for text in texts) / 1e6
    print(f"\nEncoding {len(texts)} documents, {total:.1f} MB, one core each; best of {given.rounds} rounds in turns")
    print_table(rows)
    write_json("tokenization", entries)


if __name__ == "__main__":
    main()
