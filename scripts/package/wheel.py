#!/usr/bin/env python3
"""Writes a wheel from a folder that holds the package libfsdp/: metadata, entry points, record.

The format is PEP 427's; no build backend is needed for files that are ready.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import zipfile

METADATA = """Metadata-Version: 2.1
Name: libfsdp
Version: {version}
Summary: Fully Sharded Data Parallel for LibTorch, and a native trainer: the command fsdp
Requires-Python: >=3.8
Provides-Extra: torch
Requires-Dist: torch=={torch}.*; extra == "torch"
Description-Content-Type: text/markdown

`fsdp` trains language models with one binary. It uses the LibTorch of the `torch` {torch} that is installed beside it;
`pip install libfsdp[torch]` installs that too.
"""
WHEEL = """Wheel-Version: 1.0
Generator: scripts/package/wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
fsdp = libfsdp.start:main
fsdp-quickstart = libfsdp.start:quickstart
"""
INIT = '''"""The files of the command fsdp."""

__version__ = "{version}"
TORCH_VERSION = "{torch}"
'''


def platform_tag():
    """Of the system that the binary was linked on: older ones cannot load it, and pip then says so."""
    name, version = platform.libc_ver()
    if name != "glibc":
        raise SystemExit(f"package: got the C library '{name}', expected glibc")
    return f"py3-none-manylinux_{version.replace('.', '_')}_{platform.machine()}"


def hashed(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def files_of(folder):
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        yield path.relative_to(folder).as_posix(), path.read_bytes(), os.access(path, os.X_OK)


def write_wheel(folder, version, torch, out):
    tag = platform_tag()
    info = f"libfsdp-{version}.dist-info"
    texts = {"libfsdp/__init__.py": INIT.format(version=version, torch=torch),
             f"{info}/METADATA": METADATA.format(version=version, torch=".".join(torch.split(".")[:2])),
             f"{info}/WHEEL": WHEEL.format(tag=tag),
             f"{info}/entry_points.txt": ENTRY_POINTS}
    files = list(files_of(folder)) + [(name, text.encode(), False) for name, text in texts.items()]
    record = "".join(f"{name},{hashed(data)}\n" for name, data, _ in files) + f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), False))
    path = out / f"libfsdp-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, executable in files:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # equal bytes from equal files
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch", required=True, help="version of LibTorch that the binary was built with")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    print(write_wheel(arguments.folder, arguments.version, arguments.torch, arguments.out))


if __name__ == "__main__":
    main()
