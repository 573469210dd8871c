#!/usr/bin/env python3
"""Compares the safetensors reader with the Python package `safetensors` on generated and mutated files.

For every file: both accept it or both refuse it, and what they accept has the same tensors, bit for bit. Files that we
accept are written again by our writer, and the package must read the same from the copy. A difference fails the run
unless EXPLAINED below says why it is meant to be.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "seeds"))
from packages import require

safetensors = require("safetensors")

ITEM_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F16": 16,
             "BF16": 16, "F32": 32, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8}
OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}

# (who refuses, pattern of the refusal's text, why): every other difference is a finding.
EXPLAINED = [
    ("ours", r"a second time", "duplicate keys: the package takes the last"),
    ("ours", r"got \d+ dimensions", "rank above 8"),
    ("ours", r"got dtype '(F4|F6_E2M3|F6_E3M2|F8_E8M0|F8_E4M3FNUZ|F8_E5M2FNUZ|C64)'", "dtypes we do not have"),
    ("ours", r"expected exactly these keys", "unknown keys of a tensor: the package ignores them"),
    ("ours", r"product overflows|integer from 0 to 2\^63-1", "empty tensors with sizes beyond 2^63"),
    ("ours", r"nested levels", "unknown keys of a tensor that hold deep values"),
    ("ours", r"__metadata__ that is no object", "null as __metadata__: the package takes it for none"),
    ("ours", r"does not start with '{'", "white space before the header's brace: the format forbids it, the package does not check"),
]

UNEXPLAINED = "UNEXPLAINED"


class Generator:
    """Files from a seed: valid ones, and ones with mistakes of a kind that programs make or attackers try."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def name(self):
        return self.random.choice(["w", "b", "layers.0.weight", "", "\u00e9\U0001f600", 'a"b\\', "a\nb", "\u0000", "x" * 300])

    def size(self):
        if self.random.random() < 0.01:
            return self.random.choice([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1])
        return self.random.randrange(5)

    def tensors(self):
        """List of [name, dtype, shape, begin, end]; mostly consistent."""
        known = dict(ITEM_BITS, **OTHER_BITS) if self.random.random() < 0.2 else ITEM_BITS
        position = 0
        result = []
        for number in range(self.random.randrange(5)):
            dtype = self.random.choice(sorted(known))
            shape = [self.size() for _ in range(self.random.choices([0, 1, 2, 3, 8, 9], [4, 10, 10, 4, 2, 1])[0])]
            bits = known[dtype]
            for size in shape:
                bits *= size
            end = position + bits // 8
            name = self.name() if self.random.random() < 0.3 else f"t{number}"
            result.append([name, dtype, shape, position, end])
            position = end
        return result

    def member(self, tensor):
        name, dtype, shape, begin, end = tensor
        text = {"dtype": json.dumps(dtype), "shape": json.dumps(shape), "data_offsets": json.dumps([begin, end])}
        if self.random.random() < 0.03:
            key = self.random.choice([*text, "extra"])
            text[key] = self.random.choice(["null", "1", "-1", "1.0", "[1]", "[]", '"F32"', "[" * 70 + "]" * 70, "{}", "1e2"])
        if self.random.random() < 0.01:
            del text[self.random.choice([*text])]
        members = list(text.items())
        if self.random.random() < 0.1:
            self.random.shuffle(members)
        if self.random.random() < 0.01:
            members.append(members[0])
        space = " " if self.random.random() < 0.2 else ""
        inner = ",".join(f'"{key}":{space}{value}' for key, value in members)
        return json.dumps(name, ensure_ascii=self.random.random() < 0.5) + ":{" + inner + "}"

    def header(self, tensors):
        members = [self.member(tensor) for tensor in tensors]
        if self.random.random() < 0.3:
            metadata = self.random.choice(['{"format":"pt"}', "{}", '{"a":"\\u00e9","b":""}', "null", "[]", '{"a":1}',
                                           '{"a":"1","a":"2"}', '{"a":null}', '""'] + ['{"k":"v"}'] * 8)
            members.insert(self.random.randrange(len(members) + 1), f'"__metadata__":{metadata}')
        if members and self.random.random() < 0.02:
            members.append(self.random.choice(members))
        if self.random.random() < 0.1:
            self.random.shuffle(members)
        text = "{" + ",".join(members) + "}"
        if self.random.random() < 0.1:
            text += self.random.choice([" ", "   ", "\n", "\t", "\r\n", "\0", "x", "{}", "\u00a0"])
        if self.random.random() < 0.01:
            text = self.random.choice([" ", "\n", "\ufeff", "["]) + text
        return text.encode("utf-8", "surrogatepass")

    def header_and_data(self):
        tensors = self.tensors()
        if tensors and self.random.random() < 0.05:
            tensor = self.random.choice(tensors)
            tensor[self.random.choice([3, 4])] += self.random.choice([-1, 1, 8, -(2**63), 2**63, 2**64])
        data_bytes = max([0, *(tensor[4] for tensor in tensors)])
        data_bytes = data_bytes if data_bytes < 1 << 16 else 8
        if self.random.random() < 0.03:
            data_bytes = max(0, data_bytes + self.random.choice([-1, 1, 100]))
        return self.header(tensors), self.random.randbytes(data_bytes)

    def mutated(self, content):
        content = bytearray(content)
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            place = self.random.randrange(len(content))
            kind = self.random.randrange(5)
            if kind == 0:
                content[place] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                content[place] = self.random.choice(b'0123456789{}[]",:.-e \\u\x00\xff')
            elif kind == 2:
                del content[place:place + self.random.choice([1, 1, 5, 1000])]
            elif kind == 3:
                content[place:place] = self.random.choice([b"0", b" ", b",", b"\\ud800", b'"a":1,', b"\xc3"])
            else:
                content[place:place] = content[place:place + self.random.randrange(1, 60)]
            content = content or bytearray(b"\0")
        return bytes(content)

    def any_file(self):
        header, data = self.header_and_data()
        if self.random.random() < 0.3:
            header = self.mutated(header)
        length = len(header)
        if self.random.random() < 0.03:
            length = self.random.choice([0, 1, length - 1, length + 1, 10**8, 10**8 + 1, 2**63, 2**64 - 1, 2**64 - 8])
        content = struct.pack("<Q", max(length, 0)) + header + data
        return self.mutated(content) if self.random.random() < 0.1 else content


def read_theirs(content):
    """As the probe describes a file."""
    try:
        tensors = safetensors.deserialize(content)
    except Exception as error:  # the package has one type of its own, and raises others too
        return {"accepted": False, "reason": str(error)}
    return {"accepted": True, "tensors": {name: {"dtype": value["dtype"], "shape": list(value["shape"]),
                                                 "data": bytes(value["data"]).hex()} for name, value in tensors}}


def read_metadata(content):
    """The strings of __metadata__, by Python's own parser: the package has no call for it that takes bytes."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + length]).get("__metadata__", {})


def read_ours(probe, paths, copies):
    lines = "".join(f"{path}\n" for path in paths)
    result = subprocess.run([probe, copies], input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"the probe ended with {result.returncode}:\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def difference(content, ours, theirs):
    """None if they agree, else (who refuses, text)."""
    if ours["accepted"] != theirs["accepted"]:
        return ("theirs", theirs["reason"]) if ours["accepted"] else ("ours", ours["reason"])
    if not ours["accepted"]:
        return None
    if ours["tensors"] != theirs["tensors"]:
        return ("nobody", "other tensors")
    return ("nobody", "other metadata") if ours["metadata"] != read_metadata(content) else None


def explanation(found):
    who, text = found
    return next((why for refuser, pattern, why in EXPLAINED if refuser == who and re.search(pattern, text)), None)


def check_batch(arguments, generator, folder, count, tally):
    """Generates `count` files, compares, and counts the outcomes in `tally`."""
    copies = folder / "copies"
    shutil.rmtree(folder, ignore_errors=True)
    copies.mkdir(parents=True)
    contents = [generator.any_file() for _ in range(count)]
    paths = [folder / f"{i}.safetensors" for i in range(count)]
    for path, content in zip(paths, contents):
        path.write_bytes(content)
    for path, content, ours in zip(paths, contents, read_ours(arguments.probe, paths, copies)):
        theirs = read_theirs(content)
        found = difference(content, ours, theirs)
        why = found and explanation(found)
        copy = copies / path.name
        if ours["accepted"] and read_theirs(copy.read_bytes()).get("tensors") != ours["tensors"]:
            found, why = ("nobody", "the package reads something else from what our writer made"), None
        agreed = "both accept" if ours["accepted"] else "both refuse"
        tally[(why or UNEXPLAINED) if found else agreed] += 1
        if found and not why:
            kept = arguments.keep / f"differential-{arguments.seed}-{tally[UNEXPLAINED]}.safetensors"
            arguments.keep.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(content)
            print(f"DIFFERENCE: {found}\n  theirs: {str(theirs)[:300]}\n  ours: {str(ours)[:300]}\n  kept: {kept}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", default="build/fuzz/safetensors_probe")
    parser.add_argument("--files", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("build/fuzz/findings"))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, safetensors {safetensors.__version__}")
    generator = Generator(arguments.seed)
    tally = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, arguments.files, 1000):
            count = min(1000, arguments.files - start)
            check_batch(arguments, generator, pathlib.Path(folder) / "batch", count, tally)
    for kind, count in tally.most_common():
        print(f"{count:8} {kind}")
    return 1 if tally[UNEXPLAINED] else 0


if __name__ == "__main__":
    sys.exit(main())
