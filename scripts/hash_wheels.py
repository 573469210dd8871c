#!/usr/bin/env python3
"""Writes scripts/wheels.txt: the hashes of the wheels that scripts/setup.sh installs, in the versions of scripts/versions.sh.

    scripts/hash_wheels.py            asks the package index that pip is configured for; downloads no wheel
    scripts/hash_wheels.py --check    only says whether the file has all of them, and asks nobody

Files of Linux alone, for all versions of Python that there are wheels for. What the index says today is believed from then on.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "scripts/wheels.txt"
LISTS = ("LIBTORCH_WHEELS", "PYARROW_WHEELS", "NVCC_WHEELS", "CUDA_LIBRARY_WHEELS")
HEAD = """# What scripts/setup.sh installs, and the sha256 of each file that pip may take for it. Written by scripts/hash_wheels.py.
"""


def wanted_wheels():
    """The list of "name==version" of scripts/versions.sh, each once."""
    script = "source scripts/versions.sh && echo " + " ".join(f"${name}" for name in LISTS)
    words = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(words))


def index_url():
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True,
                                text=True, check=False).stdout.strip()
    if os.environ.get("PIP_INDEX_URL") or configured:
        return os.environ.get("PIP_INDEX_URL") or configured
    from pip._internal.models.index import PyPI  # pip's own default, which it tells nowhere else
    return PyPI.simple_url


def hashes_of(url, name, version):
    """The hashes of its wheels for Linux, in the order of their names."""
    request = urllib.request.Request(f"{url.rstrip('/')}/{name}/",
                                     headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        files = json.load(answer)["files"]
    start = re.sub(r"[-_.]+", "_", name) + "-" + version + "-"
    return [file["hashes"]["sha256"] for file in sorted(files, key=lambda file: file["filename"])
            if file["filename"].startswith(start) and re.search(r"manylinux|-any\.whl$", file["filename"])]


def entry(url, wheel):
    name, version = wheel.split("==")
    hashes = hashes_of(url, name, version)
    if not hashes:
        sys.exit(f"hash_wheels: {wheel}: got no wheel for Linux from the package index, expected one")
    return " \\\n".join([wheel] + [f"    --hash=sha256:{value}" for value in hashes]) + "\n"


def main():
    wheels = wanted_wheels()
    if sys.argv[1:] == ["--check"]:
        known = {line.split()[0] for line in TARGET.read_text(encoding="utf-8").splitlines() if "==" in line}
        for wheel in sorted(set(wheels) ^ known):
            print(f"hash_wheels: {TARGET.name} and versions.sh differ in {wheel}. Run scripts/hash_wheels.py.")
        sys.exit(1 if set(wheels) ^ known else 0)
    if sys.argv[1:]:
        sys.exit("usage: scripts/hash_wheels.py [--check]")
    url = index_url()
    TARGET.write_text(HEAD + "".join(entry(url, wheel) for wheel in wheels), encoding="utf-8")


main()
