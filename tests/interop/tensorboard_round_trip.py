#!/usr/bin/env python3
"""Reads the event files of `fsdp train` with TensorBoard's own reader.

    python3 tests/interop/tensorboard_round_trip.py --fsdp build/release/bin/fsdp

Needs the package tensorboard. A run of 12 steps is killed after its checkpoint and goes on from it, so that there are two
event files, and steps of the first that no longer count: every number of metrics.jsonl must come back, and no other.
"""

import argparse
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CONFIG = """[model]
hidden_size = 32
layers = 2
heads = 2
kv_heads = 1
ffn_size = 48
[data]
path = "{folder}/data"
sequence_length = 32
[train]
batch_sequences = 4
warmup_steps = 2
log_every = 1
eval_every = 3
peak_tflops = 1
[checkpoint]
every_steps = 4
async = false
resume = "auto"
[output]
folder = "{folder}/run"
tensorboard = true
"""


def run(fsdp, *arguments, code=0):
    result = subprocess.run([fsdp, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != code:
        sys.exit(f"{arguments}: exit code {result.returncode}, expected {code}\n{result.stdout}{result.stderr}")


def numbers(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, path + (key,))
    elif value is not None:
        yield "/".join(path if len(path) > 1 else ("train",) + path), value


def expected(metrics):
    curves = {}
    for line in metrics.read_text().splitlines():
        line = json.loads(line)
        step = line.pop("step")
        assert line.pop("schema") == 1
        for tag, value in numbers(line):
            curves.setdefault(tag, {})[step] = value
    return curves


def train(fsdp, folder):
    (folder / "text.txt").write_text("\n---\n".join(f"line {i * 7 % 31} of {i * 3 % 17}" for i in range(600)))
    run(fsdp, "prepare", folder / "text.txt", "-o", folder / "data", "--separator", "---", "--holdout", "20")
    config = folder / "run.toml"
    config.write_text(CONFIG.format(folder=folder))
    # Killed in its 7th step: steps 5 and 6 were logged, and are done again from the checkpoint after step 4.
    os.environ["FSDP_FAULT"] = "kill@step.forward:hit=7"
    run(fsdp, "train", config, "--train.steps=12", code=-signal.SIGKILL)
    del os.environ["FSDP_FAULT"]
    run(fsdp, "train", config, "--train.steps=12")
    return folder / "run"


def check(output):
    files = sorted((output / "tensorboard").iterdir())
    assert len(files) == 2, files
    accumulator = EventAccumulator(str(output / "tensorboard"))
    accumulator.Reload()
    curves = expected(output / "metrics.jsonl")
    assert sorted(accumulator.Tags()["scalars"]) == sorted(curves), (accumulator.Tags(), sorted(curves))
    count = 0
    for tag, curve in curves.items():
        found = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        assert [step for step, _ in found] == sorted(curve), (tag, found, curve)
        for step, value in found:
            assert math.isclose(value, curve[step], rel_tol=1e-6), (tag, step, value, curve[step])
        count += len(found)
    print(f"ok    {len(curves)} curves, {count} values, each as in metrics.jsonl")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsdp", required=True)
    fsdp = str(pathlib.Path(parser.parse_args().fsdp).resolve())
    with tempfile.TemporaryDirectory() as folder:
        check(train(fsdp, pathlib.Path(folder)))


if __name__ == "__main__":
    main()
