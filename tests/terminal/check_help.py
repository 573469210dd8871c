#!/usr/bin/env python3
"""Compares what every verb says of itself with help.txt.

    check_help.py FSDP             prints the difference; exit code 1 if there is one
    check_help.py FSDP --write     writes help.txt anew

The tables of configuration keys, which `fsdp train --help` ends with, are held by docs/config.md.
"""

import difflib
import pathlib
import re
import subprocess
import sys

HEADER = "What every verb says of itself: more than 500 lines because there are as many verbs.\n\n"
GOLDEN = pathlib.Path(__file__).parent / "help.txt"
# Verbs that have verbs of their own.
BELOW = {"tokenizer": ("train", "encode", "decode", "chat"), "bench": ("strategies",), "plan": ("calibrate",),
         "config": ("check", "diff")}


def read_help(fsdp, words):
    result = subprocess.run([fsdp, *words, "--help"], capture_output=True, text=True, timeout=60)
    if result.returncode != 0 or result.stderr:
        sys.exit(f"check_help: fsdp {' '.join(words)} --help ended with {result.returncode}: {result.stderr}")
    text = re.sub(r"^\[model\]\n.*", "", result.stdout, flags=re.MULTILINE | re.DOTALL)
    return f"$ {' '.join(['fsdp', *words, '--help'])}\n{text.rstrip()}\n\n"


def main():
    fsdp = sys.argv[1]
    verbs = re.findall(r"^  ([a-z]+) +\S", read_help(fsdp, []), re.MULTILINE)
    commands = [[], *([verb, *below] for verb in verbs for below in ([], *([name] for name in BELOW.get(verb, ()))))]
    text = HEADER + "".join(read_help(fsdp, words) for words in commands)
    if "--write" in sys.argv:
        GOLDEN.write_text(text, encoding="utf-8")
        return 0
    difference = list(difflib.unified_diff(GOLDEN.read_text(encoding="utf-8").splitlines(), text.splitlines(), "help.txt",
                                           "fsdp --help", lineterm=""))
    print("\n".join(difference) + "\ncheck_help: if this is how it should be, run check_help.py FSDP --write"
          if difference else f"check_help: {len(commands)} texts as expected")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
