#!/usr/bin/env python3
"""Checks every #include of the project against the table of rooms below (the design's "house").

Also that the table itself only points down, that no room has grown too large to be one idea, and that no function of an
unnamed namespace hides one of a header: sources are compiled many at a time, and a call in the next one would reach the
wrong one in silence. Prints one line per violation, `file:line: rule`, and exits with 1 if there is any.
"""

import argparse
import collections
import graphlib
import pathlib
import re
import sys

ROOTS = ("fsdp", "io", "text", "kernels", "models", "plan", "report", "train", "app")
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}

RAW = {"kernels/raw", "kernels/raw/products"}
COMM = {"fsdp/comm", "fsdp/comm/host", "fsdp/comm/liveness", "fsdp/comm/rendezvous", "fsdp/comm/secret",
        "fsdp/comm/store", "fsdp/comm/transport"}
PURE = {"fsdp/layout", "fsdp/strategy"}
BUFFER = COMM | PURE | {"fsdp/mesh", "fsdp/memory", "fsdp/precision", "fsdp/base", "kernels/base", "kernels/flat"}
GROUP = BUFFER | {"fsdp/buffer"}
STATE_USERS = GROUP | {"fsdp/group", "io/base", "io/checkpoint", "kernels/raw/flat"}
IO = {"io/base", "io/gguf", "io/safetensors", "io/torch_archive", "io/dcp", "io/hub", "io/checkpoint", "io/tokens", "io/weights"}
MODELS = {"models", "models/config"}
LIBRARY = {"fsdp", "fsdp/base", "fsdp/comm", "fsdp/comm/liveness", "fsdp/graph", "fsdp/mesh", "fsdp/strategy", "fsdp/unit"}
TRAINER = LIBRARY | IO | MODELS | {"text/tokenizer", "text/unicode", "kernels/operators", "kernels/products",
                                   "kernels/base", "kernels/raw/attention", "kernels/raw/formats", "kernels/raw/products",
                                   "train/base"}
MODEL = TRAINER | {"train/config"}
DATA = MODEL | {"train/axes", "train/data", "train/model"}

# Room -> rooms it may include besides itself; a room is a folder.
ALLOWED = {
    "io/base": set(),
    "io/safetensors": {"io/base"},
    "io/torch_archive": {"io/base"},
    "io/tokens": {"io/base"},
    "io/gguf": {"io/base"},
    "io/dcp": {"io/base", "io/safetensors", "io/torch_archive"},
    "io/hub": {"io/base", "io/safetensors"},
    "io/checkpoint": {"io/base", "io/safetensors", "io/hub"},
    "io/weights": {"io/base", "io/safetensors", "io/dcp", "io/hub", "io/checkpoint"},
    "text/unicode": {"io/base"},
    "text/documents": {"io/base"},
    "text/tokenizer": {"io/base", "text/unicode"},
    "text/chat": {"io/base", "text/tokenizer"},
    "text/tokenizer_training": {"io/base", "text/documents", "text/tokenizer", "text/unicode"},
    "kernels/raw": set(),
    "kernels/raw/products": {"kernels/raw"},
    "kernels/raw/attention": RAW,
    "kernels/raw/flat": {"kernels/raw"},
    "kernels/raw/rows": {"kernels/raw"},
    "kernels/raw/formats": {"kernels/raw"},
    "kernels/base": RAW,
    "kernels/flat": RAW | {"kernels/raw/flat", "kernels/base"},
    "kernels/products": RAW | {"kernels/raw/formats", "kernels/base", "kernels/flat"},
    "kernels/operators": RAW | {"kernels/raw/attention", "kernels/raw/flat", "kernels/raw/rows", "kernels/base",
                                "kernels/flat", "kernels/products"},
    "kernels/cuda": {"kernels/base", "kernels/products", "kernels/operators"},
    "kernels/cuda/flat": {"kernels/cuda", "kernels/flat", "kernels/raw/flat"},
    "fsdp/base": set(),
    "fsdp/layout": set(),
    "fsdp/strategy": set(),
    "fsdp/schedule": set(),
    "fsdp/memory": set(),
    "fsdp/mesh": {"fsdp/base"},
    "fsdp/comm/secret": {"fsdp/base"},
    "fsdp/comm/store": {"fsdp/base", "fsdp/comm/secret"},
    "fsdp/comm/rendezvous": {"fsdp/base", "fsdp/comm/secret", "fsdp/comm/store"},
    "fsdp/comm/transport": {"fsdp/base", "fsdp/comm/secret", "kernels/flat"},
    "fsdp/comm/host": {"fsdp/base", "fsdp/memory", "fsdp/comm/rendezvous", "fsdp/comm/secret", "fsdp/comm/transport",
                       "kernels/flat", "kernels/raw/flat"},
    "fsdp/comm/liveness": {"fsdp/base", "fsdp/comm/rendezvous", "fsdp/comm/transport"},
    "fsdp/comm": COMM | {"fsdp/base", "fsdp/memory", "fsdp/mesh", "kernels/base"},
    "fsdp/cuda": {"fsdp/base", "fsdp/graph", "fsdp/comm/rendezvous", "fsdp/comm/transport", "kernels/flat"},
    "fsdp/precision": {"fsdp/base", "fsdp/comm", "fsdp/mesh", "kernels/products", "kernels/base", "kernels/raw", "kernels/raw/formats"},
    "fsdp/buffer": BUFFER,
    "fsdp/group": GROUP,
    "fsdp/optim/runs": GROUP,
    "fsdp/optim": STATE_USERS | {"fsdp/optim/runs"},
    "fsdp/optim/ema": STATE_USERS | {"fsdp/optim", "fsdp/optim/runs"},
    "fsdp/optim/schedule_free": STATE_USERS | {"fsdp/optim"},
    "fsdp/optim/adafactor": STATE_USERS | {"fsdp/optim"},
    "fsdp/checkpoint/state": STATE_USERS | {"fsdp/optim", "fsdp/optim/ema"},
    "fsdp/checkpoint": STATE_USERS | {"fsdp/checkpoint/state"},
    "fsdp/checkpoint/archive": STATE_USERS | {"fsdp/checkpoint/state", "fsdp/checkpoint"},
    "fsdp/functional": STATE_USERS,
    "fsdp/parallel": GROUP | {"fsdp/group", "fsdp/deferred", "kernels/operators", "kernels/products"},
    "fsdp/deferred": {"fsdp/base"},
    "fsdp/c": LIBRARY | {"fsdp/group", "fsdp/optim", "fsdp/checkpoint", "fsdp/checkpoint/archive"},
    "fsdp/unit": GROUP | {"fsdp/group", "fsdp/schedule", "fsdp/deferred"},
    "fsdp/pipeline": {"fsdp/base", "fsdp/comm", "fsdp/group", "fsdp/mesh", "fsdp/optim", "fsdp/strategy", "fsdp/unit"},
    "fsdp/plan": PURE | {"fsdp/base", "fsdp/group", "fsdp/mesh", "fsdp/unit", "io/base", "plan"},
    "fsdp/recompute": {"fsdp/base"},
    "fsdp/graph": {"fsdp/base", "kernels/base"},
    "fsdp/profile": {"fsdp/base"},
    "plan": PURE | {"fsdp/base", "fsdp/parallel", "fsdp/pipeline", "fsdp/schedule", "kernels/raw/rows", "models/config", "plan/picture", "plan/products"} | IO,
    "plan/picture": set(),
    "plan/products": {"io/base", "kernels/raw/rows", "models/config"},
    "plan/reliability": {"io/base", "fsdp/base", "plan"},
    "plan/time": {"fsdp/strategy", "fsdp/schedule", "io/base", "models/config", "plan/picture"},
    "plan/forecast": {"fsdp/base", "fsdp/pipeline", "io/base", "models/config", "plan", "plan/time"},
    "plan/search": PURE | {"fsdp/base", "fsdp/pipeline", "io/base", "models/config", "plan", "plan/forecast", "plan/time"},
    "report": {"fsdp/base", "io/base", "plan/picture", "text/unicode"},
    "report/trace": {"fsdp/base", "io/base", "plan/picture", "report"},
    "models/config": {"io/base"},
    "models": {"kernels/operators", "kernels/products", "io/base", "io/hub", "io/weights", "models/config"},
    "train/base": TRAINER,
    "train/calibrate": TRAINER | {"plan/time"},
    "train/config": TRAINER,
    "train/profile": MODEL | {"fsdp/profile"},
    "train/prepare": TRAINER | {"text/chat", "text/documents"},
    "train/axes": MODEL,
    "train/data": MODEL | {"train/axes"},
    "train/model": MODEL | {"plan", "train/axes"},
    "train/preference": DATA,
    "train/evaluate": DATA | {"train/preference"},
    "train/generate": DATA,
    "train/logs": {"fsdp/base", "io/base", "train/base", "train/config"},
    "train/loop": DATA | {"plan", "plan/forecast", "plan/time", "train/calibrate", "train/evaluate", "train/generate", "train/logs",
                          "train/preference", "train/profile"},
    "train/parity": DATA | {"train/loop"},
}
# Rooms within a room: its own matter, one room to all others.
PARTS = {"text/tokenizer/json": "text/tokenizer", "text/tokenizer/stages": "text/tokenizer", "app/launch": "app",
         "app/report": "app",
         "app/completion": "app", "app/config": "app", "app/doctor": "app", "app/gguf": "app",
         "app/trace": "app", "app/bench": "app", "app/progress": "app", "app/child": "app",
         "app/fp8": "app", "app/nf4": "app",
         "fsdp/unit/sharding": "fsdp/unit", "train/model/nf4": "train/model", "train/model/adapters": "train/model",
         "models/adapters": "models", "kernels/products/nf4": "kernels/products"}
EVERYTHING = {"fsdp", "app"}  # `fsdp` is the umbrella header

# These must build and run without LibTorch.
TORCH_FREE = ("fsdp/layout", "fsdp/strategy", "fsdp/schedule", "io", "text", "plan", "report", "kernels/raw", "models/config")
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")

MAX_FILES = 30  # of a folder

# What is written for one kind of processor stands here alone: the vector layer and the matrix tiles.
PROCESSOR_FILES = {"kernels/raw/simd-inl.h", "kernels/raw/transpose-inl.h", "kernels/raw/cpu_isa.cpp",
                   "kernels/raw/bf16_pairs.h", "kernels/raw/products/amx.cpp"}
PROCESSOR = re.compile(r"immintrin|arm_neon|arm_sve|target_clones|__builtin_cpu_|__attribute__\(\(target\b")

FUNCTION = re.compile(r"^(?:inline |constexpr )*[A-Za-z_][\w:<>,&* ]*?[ &*]([a-z_]\w*)\(([^()]*)\)", re.MULTILINE)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace\n", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def room_of(path):
    """Room of a path such as fsdp/layout/planner.h; None if it is none of ours."""
    folder = path.rpartition("/")[0]
    return PARTS.get(folder, folder) if folder.split("/")[0] in ROOTS else None


def is_within(room, places):
    return any(room == place or room.startswith(place + "/") for place in places)


def is_private(path):
    return path.endswith("_impl.h") or "/detail/" in path


def violation(room, quote, target):
    """What is wrong with room `room` including `target`, or None."""
    included = room_of(target)
    if included is None:
        if quote == '"':
            return 'quoted include outside the tree: start with the folder, as in "fsdp/base/check.h"'
        if is_within(room, TORCH_FREE) and target.startswith(TORCH):
            return f"{room} must not include LibTorch"
        return None
    if included == room:
        return None
    if is_private(target):
        return f"{target} is private to {included}"
    if room in EVERYTHING or included in ALLOWED.get(room, set()):
        return None
    if room not in ALLOWED:
        return f"room {room} is not in the table of scripts/check_layers.py: add it"
    allowed = ", ".join(sorted(ALLOWED[room])) or "nothing but itself"
    return f"{room} must not include {included} (allowed: {allowed})"


def check_file(root, path):
    relative = path.relative_to(root).as_posix()
    room = room_of(relative)
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        problem = match and violation(room, match.group(1), match.group(2))
        if problem:
            yield f"{relative}:{number}: {problem}"
        if relative not in PROCESSOR_FILES and PROCESSOR.search(line):
            yield f"{relative}:{number}: instruction sets are for kernels/raw/simd-inl.h and its like"


def check_table():
    try:
        graphlib.TopologicalSorter({room: below - {room} for room, below in ALLOWED.items()}).prepare()
    except graphlib.CycleError as error:
        yield f"scripts/check_layers.py: the table goes in a circle: {' -> '.join(error.args[1])}"


def check_sizes(root, files):
    for folder, count in collections.Counter(path.parent for path in files).items():
        if count > MAX_FILES:
            yield f"{folder.relative_to(root)}: {count} files, at most {MAX_FILES}: it is more than one idea"


def functions_of(text):
    """Name and types of the parameters of each function that begins a line."""
    for name, parameters in FUNCTION.findall(text):
        types = [re.sub(r"\s+", " ", re.sub(r"=.*", "", each)).strip() for each in parameters.split(",")]
        yield name, tuple(re.sub(r"(?<=[\w>&*]) ?\b[a-z_]\w*$", "", each).strip() if " " in each else each for each in types)


def check_hidden_names(root, files):
    declared = {}
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    for path, text in texts.items():
        scope = NAMESPACE.search(text)
        if scope and path.suffix == ".h":
            for function in functions_of(text):
                declared[path.relative_to(root).parts[0], scope.group(1), function] = path.relative_to(root)
    for path, text in texts.items():
        scope = NAMESPACE.search(text)
        if not scope or path.suffix != ".cpp":
            continue
        for body in UNNAMED.findall(text):
            for function in functions_of(body):
                header = declared.get((path.relative_to(root).parts[0], scope.group(1), function))
                if header:
                    yield (f"{path.relative_to(root)}: {function[0]}({', '.join(function[1])}) hides that of {header} from "
                           "sources that are compiled with this one: give it another name")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    files = sorted(p for folder in ROOTS for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    problems = [problem for path in files for problem in check_file(root, path)]
    around = sorted(p for folder in ("tests", "benchmarks", "examples") for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    problems += [*check_table(), *check_sizes(root, files + around), *check_hidden_names(root, files)]
    print("\n".join(problems) if problems else f"check_layers: {len(files)} files, no violation")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
