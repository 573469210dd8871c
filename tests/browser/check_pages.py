#!/usr/bin/env python3
"""Looks at every page and picture as a reader would, with a headless Chromium.

    check_pages.py FSDP [FOLDER]

Trains two small runs, of which one skips a step and is resumed, and compares the strategies; then loads the report, a
step's picture and the strategies' in light and dark, on a desktop and a phone: nothing is complained of in the console,
no text is cut off or stands on another, every text has the contrast that WCAG AA asks for, and every curve has a point
for each step that was logged. Screenshots are kept in FOLDER where one is given.
"""

import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import browser

STEPS = 40
RUN = f"""[model]
hidden_size = 32
layers = 4
heads = 4
kv_heads = 2
ffn_size = 48
[data]
path = "data"
sequence_length = 32
[train]
steps = {STEPS}
batch_sequences = 8
warmup_steps = 5
log_every = 1
eval_every = 10
lr = 3e-3
peak_tflops = 1
[sample]
every_steps = 20
prompts = "line "
"""
WINDOWS = {"desktop": 1280, "phone": 390}
problems = []


def expect(condition, message):
    if not condition:
        problems.append(message)


def run_fsdp(fsdp, folder, *words, **environment):
    result = subprocess.run([fsdp, *words], cwd=folder, capture_output=True, text=True, timeout=120,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    if result.returncode != 0:
        sys.exit(f"check_pages: fsdp {' '.join(words)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")


def make_pages(fsdp, folder):
    """The files to look at, by name."""
    (folder / "text").mkdir()
    for number in range(12):
        lines = [f"line {line * (number + 3) % 17} of file {number};\n" for line in range(40 + 7 * number)]
        (folder / f"text/{number}.txt").write_text("".join(lines), encoding="ascii")
    (folder / "run.toml").write_text(RUN, encoding="ascii")
    run_fsdp(fsdp, folder, "prepare", "text", "-o", "data", "--holdout", "2")
    train = ("launch", "--nproc", "2", "--", "train", "run.toml")
    run_fsdp(fsdp, folder, *train, "--output.folder=base", "--train.profile_steps=36-38",
             FSDP_TRANSPORT="gloo")  # so that the picture has gathers
    other = (*train, "--output.folder=faster", "--train.lr=6e-3", "--checkpoint.every_steps=10", "--train.on_nonfinite=skip")
    run_fsdp(fsdp, folder, *other, f"--train.steps={STEPS // 2}")
    for file in (folder / "faster/model").iterdir():  # as if it had been stopped
        file.unlink()
    (folder / "faster/model").rmdir()
    run_fsdp(fsdp, folder, *other, "--resume=auto", FSDP_FAULT="inject@value.loss:hit=3;inject@value.loss:hit=4")
    run_fsdp(fsdp, folder, "report", "base", "faster", "-o", "report.html")
    run_fsdp(fsdp, folder, "trace", "base")
    run_fsdp(fsdp, folder, "bench", "strategies", "run.toml", "--steps", "8", "--svg", "strategies.svg")
    return {"report": folder / "report.html", "step": folder / "base/step.svg", "strategies": folder / "strategies.svg"}


def logged(folder, file, key):
    """How many lines of a run's file have a finite number there; a ledger has the bits of its numbers."""
    lines = [json.loads(line) for line in (folder / file).read_text(encoding="utf-8").splitlines()]
    values = [line.get(key) for line in lines]
    values = [struct.unpack(">d", bytes.fromhex(value))[0] if isinstance(value, str) else value for value in values]
    return sum(value is not None and math.isfinite(value) for value in values)


def check_curves(curves, folder, where):
    points = {(curve["chart"], curve["name"]): curve["points"] for curve in curves}
    for curve in curves:
        expect(curve["inside"], f"{where}: {curve['chart']}, {curve['name']}: points outside of the axes")
    for letter, run in (("A", "base"), ("B", "faster")):
        losses = logged(folder / run, "ledger.jsonl", "loss")
        expected = {("Loss", f"{letter} loss"): losses, ("Loss", f"{letter} held out"): STEPS // 10}
        for chart, name, key in (("Gradient norm", "norm", "grad_norm"), ("Learning rate", "lr", "lr"),
                                 ("Throughput", "tok/s", "tokens_per_s"), ("Time of a step", "step", "step_ms")):
            expected[chart, f"{letter} {name}"] = logged(folder / run, "metrics.jsonl", key)
        for curve, count in expected.items():
            expect(points.get(curve) == count, f"{where}: {curve}: {points.get(curve)} points, logged were {count}")
        expect(losses in (STEPS, STEPS - 1), f"{run} logged {losses} losses")


def look(page, name, path, folder, shots):
    script = (pathlib.Path(__file__).parent / "look.js").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        for window, width in WINDOWS.items():
            if window == "phone" and path.suffix != ".html":
                continue  # a picture is scaled by the page that it stands on
            where = f"{name}, {theme}, {window}"
            page.show(path, width, theme)
            seen = page.evaluate(script)
            problems.extend(f"{where}: {problem}" for problem in seen["problems"])
            if path.suffix == ".html":
                check_curves(seen["curves"], folder, where)
            if shots:
                page.screenshot(shots / f"{name}-{theme}-{window}.png")


def main():
    fsdp = str(pathlib.Path(sys.argv[1]).resolve())
    shots = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    program = browser.find_browser()
    if not program:
        print(f"check_pages: no browser ({', '.join(browser.NAMES)}); skipped")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        pages = make_pages(fsdp, folder)
        page = browser.Browser(program)
        try:
            for name, path in pages.items():
                look(page, name, path, folder, shots)
            problems.extend(f"console: {complaint}" for complaint in page.complaints)
        finally:
            page.close()
    print("\n".join(problems) if problems else "check_pages: no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
