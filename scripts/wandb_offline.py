#!/usr/bin/env python3
"""Turns the log of a run into an offline run of Weights & Biases, which `wandb sync` uploads:

    pip install wandb
    scripts/wandb_offline.py runs/base --project headers        # prints the folder
    wandb sync wandb/offline-run-*

Reads metrics.jsonl and config.toml of the run's output folder, and nothing else; needs no network and no account. What it
has read is not read again by itself: call it once, when the run has ended.
"""

import argparse
import json
import os
import pathlib
import sys
import tomllib

SCHEMA = 1  # docs/logs.md


def read_lines(path):
    """Each object of metrics.jsonl."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry = json.loads(line)
        if entry["schema"] > SCHEMA:
            sys.exit(f"wandb_offline: {path}:{number}: got schema {entry['schema']}, expected at most {SCHEMA}. Take the "
                     "script of that version.")
        yield entry


def flattened(entry, prefix=""):
    """{"memory": {"params": 1}} -> {"memory/params": 1}; null is left out."""
    numbers = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            numbers |= flattened(value, f"{prefix}{key}/")
        elif value is not None and key not in ("schema", "step", "steps"):
            numbers[prefix + key] = value
    return numbers


def numbers_by_step(entries):
    """Training and evaluation of one step together: W&B takes each step once, in order."""
    steps = {}
    for entry in entries:
        steps.setdefault(entry["step"], {}).update(flattened(entry))
    return sorted(steps.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="the output folder of a training")
    parser.add_argument("--project", default="fsdp")
    parser.add_argument("--name", help="of the run; default: that of the folder")
    parser.add_argument("--dir", default=".", help="where the folder wandb/ is made")
    arguments = parser.parse_args()
    if not (arguments.run / "metrics.jsonl").is_file():
        sys.exit(f"wandb_offline: {arguments.run}: got no metrics.jsonl there, expected the output folder of a training.")
    import wandb  # late: it takes seconds
    os.environ.setdefault("WANDB_SILENT", "true")
    config = tomllib.loads((arguments.run / "config.toml").read_text(encoding="utf-8"))
    run = wandb.init(mode="offline", project=arguments.project, name=arguments.name or arguments.run.resolve().name,
                     dir=arguments.dir, config=config)
    for step, numbers in numbers_by_step(read_lines(arguments.run / "metrics.jsonl")):
        run.log(numbers, step=step)
    folder = run.settings.sync_dir
    run.finish()
    print(folder)


if __name__ == "__main__":
    main()
