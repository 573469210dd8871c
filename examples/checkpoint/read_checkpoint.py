#!/usr/bin/env python3
"""Reads a checkpoint without this library (docs/checkpoint_format.md): Python, numpy and, for the hashes, xxhash.

read_checkpoint.py out/checkpoints/step-20                    lists its tensors
read_checkpoint.py out/checkpoints/step-20 model/w w.npy      writes one, put together, as numpy stores arrays
"""
import json
import pathlib
import sys

import numpy

try:
    import xxhash
except ImportError:
    xxhash = None
    print("note: no package xxhash, so hashes are not checked")

# BF16 becomes F32 below; numpy has no 8-bit floats, so those stay bytes.
DTYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
          "U64": "<u8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "F8_E4M3": "u1", "F8_E5M2": "u1"}


def check(data, expected, what):
    if xxhash and xxhash.xxh3_128_hexdigest(data) != expected:
        raise SystemExit(f"{what}: wrong hash; choose another checkpoint")


def read_manifest(folder):
    text = (folder / "manifest.json").read_bytes()
    if text[-45:-35] != b'"digest":"' or text[-3:] != b'"}\n':
        raise SystemExit(f"{folder}: the manifest is cut off; choose another checkpoint")
    check(text[:-35], text[-35:-3].decode(), "manifest.json")
    return json.loads(text)


def read_tensor(folder, manifest, tensor):
    item = numpy.dtype(DTYPES[tensor["dtype"]])
    flat = numpy.empty(numpy.prod(tensor["shape"], dtype=int), item)
    size = manifest["chunk_bytes"]
    for number, offset, begin, end in tensor["parts"]:
        file = manifest["files"][number]
        data = numpy.memmap(folder / file["name"], mode="r")
        if data.size != file["bytes"]:
            raise SystemExit(f"{file['name']}: {data.size} bytes, expected {file['bytes']}; choose another checkpoint")
        stop = offset + (end - begin) * item.itemsize
        for i in range(offset // size, (stop - 1) // size + 1):
            check(data[i * size:(i + 1) * size], file["chunks"][i], f"{file['name']}, chunk {i}")
        flat[begin:end] = data[offset:stop].view(item)
    return (flat.astype("<u4") << 16).view("<f4") if tensor["dtype"] == "BF16" else flat


if len(sys.argv) not in (2, 3, 4):
    raise SystemExit(__doc__)
checkpoint, wanted, out = pathlib.Path(sys.argv[1]), *(sys.argv[2:] + [None, None])[:2]
contents = read_manifest(checkpoint)
for entry in [entry for entry in contents["tensors"] if wanted in (None, entry["name"])]:
    print(entry["name"], entry["dtype"], entry["shape"], len(entry["parts"]), "parts")
    if out:
        numpy.save(out, read_tensor(checkpoint, contents, entry).reshape(entry["shape"]))
