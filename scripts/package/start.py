"""The command `fsdp` of a Python environment: finds the torch that is there, and becomes the binary.

torch is not imported, which would take seconds; its version is read from its files.
"""

import importlib.util
import os
import pathlib
import re
import sys

from libfsdp import TORCH_VERSION

HERE = pathlib.Path(__file__).resolve().parent


def minor(version):
    """2.11.0+cpu -> 2.11"""
    return ".".join(version.split("+")[0].split(".")[:2])


def refuse(message):
    sys.stderr.write(f"fsdp: {message}\n")
    sys.exit(2)


def find_torch():
    """Folder of the torch that `import torch` would import; ends the process where its version is another."""
    wanted = minor(TORCH_VERSION)
    advice = f"Run: pip install 'torch=={wanted}.*'"
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        refuse(f"got no torch in {sys.prefix}, expected version {wanted}. {advice}")
    folder = pathlib.Path(list(spec.submodule_search_locations)[0]).resolve()
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        refuse(f"got a torch in {folder} that tells no version ({error}), expected version {wanted}. {advice}")
    found = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    version = found.group(1) if found else "of no name"
    if minor(version) != wanted:
        refuse(f"got torch {version} in {folder}, expected {wanted}: its libraries have no other interface. {advice}")
    return folder


def become(program):
    torch = find_torch()
    environment = dict(os.environ)
    # The binary looks for torch beside this package; it may be elsewhere on Python's path.
    if torch.parent != HERE.parent:
        paths = [str(torch / "lib")] + [p for p in [environment.get("LD_LIBRARY_PATH")] if p]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    environment.setdefault("FSDP_LIBTORCH_DIR", str(torch))
    path = str(HERE / "bin" / program)
    os.execve(path, [path] + sys.argv[1:], environment)


def main():
    become("fsdp")


def quickstart():
    become("fsdp-quickstart")
