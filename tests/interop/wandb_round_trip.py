#!/usr/bin/env python3
"""Reads what wandb makes of a log by scripts/wandb_offline.py, as `wandb sync` would send it.

    python3 tests/interop/wandb_round_trip.py

Needs the package wandb, no network and no account. The file is a log of LevelDB with wandb's records in it. Every number of a made-up metrics.jsonl, at its step, must come back, no
other, and the configuration.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from wandb.proto import wandb_internal_pb2

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/wandb_offline.py"
LINES = [
    {"schema": 1, "step": 1, "steps": 4, "tokens": 64, "loss": 5.5, "memory": {"params": 3, "activations": None}},
    {"schema": 1, "step": 2, "steps": 4, "tokens": 128, "loss": None, "memory": {"params": 3, "activations": None}},
    {"schema": 1, "step": 2, "heldout": {"loss": 4.25, "bits_per_byte": None, "bytes": 7}},
    {"schema": 1, "step": 4, "steps": 4, "tokens": 256, "loss": 0.1, "comm": {"exposed_ms": 1.5}},
]
EXPECTED = {
    1: {"tokens": 64, "loss": 5.5, "memory/params": 3},
    2: {"tokens": 128, "memory/params": 3, "heldout/loss": 4.25, "heldout/bytes": 7},
    4: {"tokens": 256, "loss": 0.1, "comm/exposed_ms": 1.5},
}


BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path):
    """wandb's records: behind a header of 7 bytes, blocks of pieces, each with CRC, length and kind before it."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", data[:7]
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert FULL <= kind <= LAST, kind
        whole += data[at + HEADER:at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def named(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def main():
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "base"
        run.mkdir()
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
        (run / "config.toml").write_text("[train]\nlr = 0.5\n", encoding="utf-8")
        result = subprocess.run([sys.executable, SCRIPT, run, "--dir", folder], check=True, capture_output=True, text=True,
                                env={**os.environ, "WANDB_MODE": "offline"})
        out = pathlib.Path(result.stdout.splitlines()[-1])
        steps, config, names = {}, {}, set()
        for record in records(next(out.glob("*.wandb"))):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                numbers = named(record.history.item)
                step = numbers.pop("_step", record.history.step.num)
                steps[step] = {key: value for key, value in numbers.items() if not key.startswith("_")}
            elif kind == "run":
                names.add(record.run.display_name)
                config |= named(record.run.config.update)
        assert steps == EXPECTED, steps
        assert config["train"] == {"lr": 0.5}, config
        assert names == {"base"}, names
        (run / "metrics.jsonl").write_text('{"schema": 2, "step": 1}\n', encoding="utf-8")
        refused = subprocess.run([sys.executable, SCRIPT, run, "--dir", folder], capture_output=True, text=True)
        assert refused.returncode == 1 and "got schema 2, expected at most 1" in refused.stderr, refused
    print("wandb_round_trip: every number came back")


if __name__ == "__main__":
    main()
