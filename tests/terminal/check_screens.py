#!/usr/bin/env python3
"""Looks at terminals of 80 and 120 columns while `fsdp` works in them: in tmux, as a person has it.

    check_screens.py FSDP

A training of two ranks has one live line, the last one, which is cut to the terminal and says the same first things in
each; when the training has ended, it is there no more, and no piece of it is left. The doctor says its findings one a line,
each with a verdict, in the order that docs/doctor.md has.
"""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 120
RUN = """[model]
hidden_size = 32
layers = 4
heads = 4
kv_heads = 2
ffn_size = 48
[data]
path = "data"
sequence_length = 32
[train]
steps = 600
batch_sequences = 8
peak_tflops = 1
[output]
folder = "out"
overwrite = "replace"
"""
LIVE = re.compile(r"\[0\] step \d+/600 \[[=>]* *\] loss \d+\.\d+ [\d,]+ tok/s eta \d\d:\d\d:\d\d( rank [01] \+\d+%)? \| ?.*")
FINDINGS = ["versions", "cores", "instructions", "memory", "/dev/shm", "open files", "GPUs", "disk", "ports", "host name"]
problems = []


def expect(condition, message):
    if not condition:
        problems.append(message)


class Screen:
    """A terminal with a command in it, of a server of its own: one that was just told to end would still be found."""

    count = itertools.count()

    def __init__(self, columns, folder, command):
        self.server = ["tmux", "-L", f"fsdp-{os.getpid()}-{next(self.count)}", "-f", "/dev/null"]
        subprocess.run([*self.server, "new-session", "-d", "-x", str(columns), "-y", "60", "-c", str(folder),
                        f"{command}; echo; echo ENDED $?; sleep {2 * DEADLINE_S}"], check=True)

    def lines(self):
        text = subprocess.run([*self.server, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
        return text.rstrip("\n").split("\n")

    def until(self, is_it):
        """What stands there once is_it holds for the lines, or at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        lines = self.lines()
        while not is_it(lines) and time.monotonic() < deadline:
            time.sleep(0.02)  # between two looks
            lines = self.lines()
        return lines

    def close(self):
        subprocess.run([*self.server, "kill-server"], check=False)


def has_ended(lines):
    return any(line.startswith("ENDED ") for line in lines)


def check_training(fsdp, folder, columns):
    screen = Screen(columns, folder, f"OMP_NUM_THREADS=1 {fsdp} launch --nproc 2 -- train run.toml")
    try:
        live = screen.until(lambda lines: LIVE.fullmatch(lines[-1]) or has_ended(lines))
        where = f"{columns} columns"
        expect(LIVE.fullmatch(live[-1]), f"{where}: no live line at the end of:\n" + "\n".join(live))
        expect(sum("[0] step " in line for line in live) == 1, f"{where}: more than one live line:\n" + "\n".join(live))
        expect(columns // 2 < len(live[-1]) < columns, f"{where}: the live line has {len(live[-1])} characters")
        last = screen.until(has_ended)
        expect("ENDED 0" in last, f"{where}: the training did not end well:\n" + "\n".join(last))
        told = [line for line in last if "[0] step " in line]
        expect(len(told) <= 1 and all("step 600/600" in line for line in told), f"{where}: pieces are left:\n" + "\n".join(last))
    finally:
        screen.close()


def check_doctor(fsdp, folder, columns):
    screen = Screen(columns, folder, f"{fsdp} doctor --quick")
    try:
        lines = screen.until(has_ended)
    finally:
        screen.close()
    found = [match[1] for match in (re.match(r"(?:ok|slow|broken) +(\S+(?: \S+)?)  +\S", line) for line in lines) if match]
    expect(found == FINDINGS, f"{columns} columns: the doctor found {found}:\n" + "\n".join(lines))
    expect(any(re.match("Training would (not )?work here", line) for line in lines), f"{columns} columns: no verdict")


def main():
    fsdp = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("tmux"):
        print("check_screens: no tmux; skipped")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "text.txt").write_text("".join(f"line {line % 17} of a file;\n" for line in range(900)), encoding="ascii")
        (folder / "run.toml").write_text(RUN, encoding="ascii")
        subprocess.run([fsdp, "prepare", "text.txt", "-o", "data", "--holdout", "0"], cwd=folder, check=True, timeout=DEADLINE_S,
                       stdout=subprocess.DEVNULL)
        for columns in (80, 120):
            check_training(fsdp, folder, columns)
            check_doctor(fsdp, folder, columns)
    print("\n".join(problems) if problems else "check_screens: no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
