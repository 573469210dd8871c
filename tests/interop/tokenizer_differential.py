#!/usr/bin/env python3
"""Compares our tokenizers with the Python package `tokenizers`: ids of encode and text of decode, exactly.

    python3 tests/interop/tokenizer_differential.py --probe build/release/bin/tokenization --mb 20 TOKENIZER...
    python3 tests/interop/tokenizer_differential.py --probe build/release/bin/tokenization --variants

TOKENIZER: folders with a tokenizer.json. --variants: trains small tokenizers with many settings besides (see
tokenizer_variants.py). Prints a line per tokenizer and the first differences; exits with 1 if there is any.
"""

import argparse
import pathlib
import struct
import subprocess
import sys
import tempfile

from mixed_text import Mixer
from tokenizer_variants import write_variants
from tokenizers import Tokenizer

SHOWN = 5
BATCH_BYTES = 4 << 20


def blocks(data, item_bytes):
    """Splits what the probe wrote: a uint32 count of items, then the items."""
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4 + count * item_bytes
        yield data[at - count * item_bytes:at]


def batches(texts):
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text.encode())
        if size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def run_probe(probe, folder, texts, scratch):
    documents = scratch / "documents"
    with open(documents, "wb") as file:
        for text in texts:
            data = text.encode()
            file.write(struct.pack("<I", len(data)) + data)
    subprocess.run([probe, folder, documents, "--ids", scratch / "ids", "--texts", scratch / "texts"], check=True,
                   stdout=subprocess.DEVNULL)
    ids = [list(struct.unpack(f"<{len(block) // 4}i", block)) for block in blocks((scratch / "ids").read_bytes(), 4)]
    return ids, [block.decode() for block in blocks((scratch / "texts").read_bytes(), 1)]


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def report(name, what, text, mine, theirs):
    at = first_difference(mine, theirs)
    got, expected = (ascii(values[max(at - 3, 0):at + 5]) for values in (mine, theirs))
    print(f"  {name}: {what} of {ascii(text[:60])}... ({len(text)} characters): at {at} got {got}, expected {expected}")


def compare(probe, folder, num_bytes, seed, scratch):
    peer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [token.content for token in peer.get_added_tokens_decoder().values()]
    num_texts = num_ids = num_bad = total = 0
    for texts in batches(Mixer(seed, special).documents(num_bytes)):
        ids, decoded = run_probe(probe, folder, texts, scratch)
        expected_ids = [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]
        expected_texts = peer.decode_batch(expected_ids, skip_special_tokens=False)
        for text, mine, theirs, my_text, their_text in zip(texts, ids, expected_ids, decoded, expected_texts, strict=True):
            wrong = mine != theirs or my_text != their_text
            if wrong and num_bad < SHOWN:
                if mine != theirs:
                    report(folder.name, "ids", text, mine, theirs)
                else:
                    report(folder.name, "decoded text", text, my_text, their_text)
            num_bad += wrong
            num_ids += len(theirs)
            total += len(text.encode())
        num_texts += len(texts)
    print(f"{folder.name}: {total / 1e6:.1f} MB, {num_texts} texts, {num_ids} ids, {num_bad} texts differ", flush=True)
    return num_bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", type=pathlib.Path)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--mb", type=float, default=4, help="of text per tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variants", action="store_true")
    given = parser.parse_args()
    num_bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = given.tokenizers + (write_variants(scratch, given.seed) if given.variants else [])
        for folder in folders:
            num_bad += compare(given.probe, folder, int(given.mb * 1e6), given.seed, scratch)
    print(f"seed {given.seed}: {len(folders)} tokenizers, {num_bad} texts differ")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
