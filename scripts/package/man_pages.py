#!/usr/bin/env python3
"""Writes fsdp.1 and a page for each verb from what the binary itself says about them."""

import pathlib
import re
import subprocess
import sys


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(['.])", r"\\&\1", text, flags=re.MULTILINE)


def page(name, version, summary, sections):
    lines = [f'.TH "{name.upper()}" 1 "" "{version}"', ".SH NAME", f"{escaped(name)} \\- {escaped(summary)}"]
    for title, text in sections:
        lines += [f".SH {title}", ".nf", escaped(text.rstrip()), ".fi"]
    return "\n".join(lines) + "\n"


def read_verbs(usage):
    """(verb, summary) of the lines "  prepare    turn documents into ..."."""
    return re.findall(r"^  ([a-z]+) +(\S.*)$", usage, re.MULTILINE)


def main():
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    version = output(binary, "--version").split(" (")[0]
    usage = output(binary, "--help")
    verbs = read_verbs(usage)
    see_also = ", ".join(f"fsdp-{verb}(1)" for verb, _ in verbs)
    (folder / "fsdp.1").write_text(page("fsdp", version, "train language models, sharded over many ranks",
                                        [("USAGE", usage), ("SEE ALSO", see_also.replace(", ", ",\n"))]))
    for verb, summary in verbs:
        text = output(binary, verb, "--help")
        (folder / f"fsdp-{verb}.1").write_text(page(f"fsdp-{verb}", version, summary, [("DESCRIPTION", text)]))


if __name__ == "__main__":
    main()
