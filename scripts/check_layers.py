#!/usr/bin/env python3
"""Checks every #include of the project against the table of modules below (the design's "house").

Prints one line per violation, `file:line: rule`, and exits with 1 if there is any.
"""

import argparse
import pathlib
import re
import sys

ROOTS = ("fsdp", "io", "text", "kernels", "models", "plan", "train", "app")
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}

BUFFER = {"layout", "strategy", "mesh", "memory", "comm", "precision", "kernels", "kernels/raw", "base"}
GROUP = BUFFER | {"buffer"}
STATE_USERS = GROUP | {"group", "io"}

# Module -> modules it may include besides itself. A module is a folder of fsdp/ or one of the other roots.
ALLOWED = {
    "base": set(),
    "layout": set(),
    "strategy": set(),
    "schedule": set(),
    "io": set(),
    "kernels": {"kernels/raw"},
    "kernels/raw": set(),
    "memory": set(),
    "mesh": {"base"},
    "comm": {"base", "memory", "mesh", "kernels", "kernels/raw"},
    "cuda": {"base", "comm", "kernels"},
    "precision": {"base"},
    "buffer": BUFFER,
    "group": GROUP,
    "optim": STATE_USERS,
    "checkpoint": STATE_USERS | {"optim"},
    "functional": STATE_USERS,
    "deferred": {"base"},
    "unit": GROUP | {"group", "schedule", "deferred"},
    "recompute": {"base"},
    "graph": {"base"},
    "profile": {"base"},
    "plan": {"layout", "strategy", "schedule", "mesh", "io"},
    "models": {"kernels", "io"},
}
EVERYTHING = {"fsdp", "train", "app"}  # `fsdp` is the umbrella header and what else lies directly in fsdp/

# These must build and run without LibTorch.
TORCH_FREE = {"layout", "strategy", "schedule", "io", "plan", "kernels/raw"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")

# What is written for one kind of processor stands here alone: the vector layer and the matrix tiles.
PROCESSOR_FILES = {"kernels/raw/simd-inl.h", "kernels/raw/transpose-inl.h", "kernels/raw/cpu_isa.cpp",
                   "kernels/raw/bf16_pairs.h", "kernels/raw/products/few_rows_amx.cpp"}
PROCESSOR = re.compile(r"immintrin|arm_neon|arm_sve|target_clones|__builtin_cpu_|__attribute__\(\(target\b")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def module_of(path):
    """Module of a path such as fsdp/layout/planner.h; None if it is none of ours."""
    parts = path.split("/")
    if parts[0] not in ROOTS or len(parts) < 2:
        return None
    if parts[:2] == ["kernels", "raw"]:
        return "kernels/raw"
    if parts[0] != "fsdp":
        return parts[0]
    return parts[1] if len(parts) > 2 else "fsdp"


def is_private(path):
    return path.endswith("_impl.h") or "/detail/" in path


def violation(module, quote, target):
    """What is wrong with `module` including `target`, or None."""
    included = module_of(target)
    if included is None:
        if quote == '"':
            return 'quoted include outside the tree: start with the folder, as in "fsdp/base/check.h"'
        if module in TORCH_FREE and target.startswith(TORCH):
            return f"{module} must not include LibTorch"
        return None
    if included == module:
        return None
    if is_private(target):
        return f"{target} is private to {included}"
    if module in EVERYTHING or included in ALLOWED.get(module, set()):
        return None
    if module not in ALLOWED:
        return f"module {module} is not in the table of scripts/check_layers.py: add it"
    allowed = ", ".join(sorted(ALLOWED[module])) or "nothing but itself"
    return f"{module} must not include {included} (allowed: {allowed})"


def check_file(root, path):
    relative = path.relative_to(root).as_posix()
    module = module_of(relative)
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        problem = match and violation(module, match.group(1), match.group(2))
        if problem:
            yield f"{relative}:{number}: {problem}"
        if relative not in PROCESSOR_FILES and PROCESSOR.search(line):
            yield f"{relative}:{number}: instruction sets are for kernels/raw/simd-inl.h and its like"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    files = sorted(p for folder in ROOTS for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    problems = [problem for path in files for problem in check_file(root, path)]
    print("\n".join(problems) if problems else f"check_layers: {len(files)} files, no violation")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
