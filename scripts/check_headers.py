#!/usr/bin/env python3
"""Checks that each public header compiles on its own, with every warning.

The headers of others that cost most are precompiled. A header is checked with one of them only if it includes that one
itself or by way of our headers: then it stands in for what would be read anyway, and can hide nothing that is missing.
For torch/nn/module.h it is the build's, which has two headers more: it stands in where nothing of theirs is named.
"""

import argparse
import concurrent.futures
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

COSTLY = ("ATen/core/Tensor.h", "nlohmann/json.hpp")  # the first one that a header includes serves it
OF_THE_BUILD = "torch/nn/module.h"
NAMED_BESIDE_IT = re.compile(r"\b(autograd::|c10d::|Function<)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="build folder, with compile_commands.json and public_headers.txt")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time (default 2)")
    return parser.parse_args()


def command_of(build):
    """The library's own compiler and options, without what is about one object or made here; and the header that it
    precompiles."""
    entries = json.loads((build / "compile_commands.json").read_text())
    entry = next((e for e in entries if "/fsdp.dir/" in e["command"] and "-include" in e["command"]), None)
    if entry is None:
        sys.exit(f"check_headers: no source of target fsdp in {build}/compile_commands.json; configure the build")
    words = shlex.split(entry["command"])
    # A launcher (ccache) comes before the compiler, which is the last word before the first option of compiling.
    first = next(i for i, word in enumerate(words) if i > 0 and word.startswith("-") and word != "-E")
    options, precompiled, before = [], None, ""
    for word in words[first:]:
        if before == "-include" and word.endswith(".hxx"):
            precompiled = word
        elif before not in ("-o", "-c", "-MF", "-MT") and word not in ("-o", "-include", "-c", "-MF", "-MT") and \
                not word.startswith(("-DFSDP_", "-fpch", "-Winvalid-pch", "-Wno-subobject")):
            options.append(word)
        before = word
    return [words[first - 1], *options], precompiled


@functools.cache
def includes(root, header):
    """Names of all that `header` includes, itself or by way of headers of this project."""
    found = set()
    for name in INCLUDE.findall((root / header).read_text()):
        found.add(name)
        if (root / name).is_file():
            found |= includes(root, name)
    return found


def precompile(command, folder, name):
    header = folder / name.replace("/", "_")
    header.write_text(f"#include <{name}>\n")
    subprocess.run([*command, "-w", "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return header


def main():
    arguments = parse_arguments()
    command, of_the_build = command_of(arguments.build)
    root = pathlib.Path(__file__).resolve().parents[1]
    paths = [pathlib.Path(line) for line in (arguments.build / "public_headers.txt").read_text().split()]
    headers = sorted(str(path.resolve().relative_to(root)) for path in paths)
    with tempfile.TemporaryDirectory(prefix="fsdp-headers-") as name, \
            concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder = pathlib.Path(name)
        stands_in = dict(zip(COSTLY, pool.map(functools.partial(precompile, command, folder), COSTLY)))

        def chosen(header):
            if OF_THE_BUILD in includes(root, header) and not NAMED_BESIDE_IT.search((root / header).read_text()):
                return of_the_build
            return next((stands_in[name] for name in COSTLY if name in includes(root, header)), None)

        def check(header):
            before = ["-include", str(stand_in)] if (stand_in := chosen(header)) else []
            run = subprocess.run([*command, "-Werror", "-fsyntax-only", *before, "-x", "c++", "-"], cwd=root, text=True,
                                 input=f'#include "{header}"\n', capture_output=True)
            return run.stderr if run.returncode else ""

        failed = [(header, text) for header, text in zip(headers, pool.map(check, headers)) if text]
    for header, text in failed:
        print(f"{header}: does not compile on its own:\n{text}")
    print(f"{len(headers)} public headers, {len(failed)} of which do not compile on their own")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
