#!/usr/bin/env python3
"""Checks the text of the project: lengths, ASCII, banned names and calls, and that paths named in documents exist.

Prints one line per violation, `file:line: rule`, and exits with 1 if there is any. A source file over 500 lines says why in
its first line with the words "lines because".
"""

import argparse
import itertools
import pathlib
import re
import sys

SOURCE_ROOTS = ("fsdp", "io", "text", "kernels", "models", "plan", "report", "train", "app", "tests", "benchmarks", "examples",
                "scripts", "cmake")
PATH_ROOTS = SOURCE_ROOTS + ("docs", ".ci")
LIBRARY_ROOTS = ("fsdp", "io", "text", "kernels", "models")
CPP = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}
SOURCES = CPP | {".py", ".sh", ".cmake", ".txt"}
TEXT = SOURCES | {".md", ".toml", ".json"}

MAX_FILE = 500
MAX_HEADER = 150
MAX_README = 150
EXCUSE = "lines because"

# A library reports by exceptions; it neither ends the process nor writes to the terminal.
BANNED_CALL = re.compile(r"(?<![\w.>])(?:std::)?(_?exit|quick_exit|v?f?printf)\s*\(|std::cout\b")
BACKTICKS = re.compile(r"`([^`\n]+)`")
REPO_PATH = re.compile(r"[\w.\-]+(?:/[\w.\-*{},]+)+/?")
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


def numbered(path):
    return enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)


def check_length(path, relative, lines):
    count = len(lines)
    is_public_header = relative.startswith("fsdp/") and path.suffix == ".h" and not (
        relative.endswith("_impl.h") or "/detail/" in relative)
    excused = bool(lines) and EXCUSE in lines[0]
    if path.suffix in SOURCES and count > MAX_FILE and not excused:
        yield f"{relative}:1: {count} lines, at most {MAX_FILE} (or say why in the first line: '... {EXCUSE} ...')"
    if is_public_header and count > MAX_HEADER and not excused:
        yield f"{relative}:1: public header of {count} lines, at most {MAX_HEADER}"
    if relative == "README.md" and count > MAX_README:
        yield f"{relative}:1: {count} lines, at most {MAX_README}"


def check_lines(path, relative):
    in_library = relative.split("/")[0] in LIBRARY_ROOTS and path.suffix in CPP
    for number, line in numbered(path):
        if not line.isascii():
            yield f"{relative}:{number}: not ASCII"
        code = LITERAL.sub('""', line).split("//")[0]
        match = in_library and BANNED_CALL.search(code)
        if match:
            yield f"{relative}:{number}: {match.group(0).strip()} in a library: throw an error instead"


def expand_braces(text):
    """a.{h,cpp} -> a.h, a.cpp."""
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    choices = (text[:match.start()] + choice + text[match.end():] for choice in match.group(1).split(","))
    return list(itertools.chain.from_iterable(expand_braces(choice) for choice in choices))


def check_paths(root, path, relative):
    for number, line in numbered(path):
        for quoted in BACKTICKS.findall(line):
            for word in quoted.split():
                word = re.sub(r":\d+$", "", word.removeprefix("./").rstrip(",;"))
                if not REPO_PATH.fullmatch(word) or word.split("/")[0] not in PATH_ROOTS:
                    continue
                for candidate in expand_braces(word):
                    if not any(root.glob(candidate.rstrip("/"))):
                        yield f"{relative}:{number}: no such path: {candidate}"


def check_file(root, path):
    relative = path.relative_to(root).as_posix()
    if re.fullmatch(r"utils?", path.stem) or re.search(r"_utils?$", path.stem):
        yield f"{relative}:1: no utils: name the file by what is in it"
    yield from check_length(path, relative, path.read_text(encoding="utf-8", errors="replace").splitlines())
    yield from check_lines(path, relative)
    if relative == "README.md" or (relative.startswith("docs/") and path.suffix == ".md"):
        yield from check_paths(root, path, relative)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    files = [p for folder in PATH_ROOTS for p in (root / folder).rglob("*") if p.suffix in TEXT and p.is_file()]
    files += [p for p in root.iterdir() if p.suffix in TEXT and p.is_file()]
    problems = [problem for path in sorted(files) for problem in check_file(root, path)]
    print("\n".join(problems) if problems else f"check_text: {len(files)} files, no violation")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
