#!/usr/bin/env python3
"""Checks how scripts/setup.sh installs packages of the system: those that are missing, once.

    check_setup.py SOURCE

`dpkg-query`, `sudo` and `apt-get` are programs made here, so nothing is installed: the first says which packages there
are, the last writes what it was asked and refuses, after which setup.sh must end.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

MISSING = ("libfmt-dev", "libhwy-dev")
DPKG_QUERY = f"""#!/bin/sh
case "$3" in
  {" | ".join(MISSING)}) exit 1 ;;
  *) echo "install ok installed" ;;
esac
"""
APT_GET = """#!/bin/sh
echo "$*" >>"$ASKED"
[ "$1" != install ] || exit 100
"""
SUDO = """#!/bin/sh
exec "$@"
"""


def check_packages(source, folder):
    for name, text in {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET, "sudo": SUDO}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    asked = folder / "asked"
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "ASKED": str(asked)}
    try:
        step = subprocess.run(["bash", "scripts/setup.sh"], cwd=source, env=environment, capture_output=True, text=True,
                              check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return ["setup.sh did not end after apt-get had refused"]
    lines = asked.read_text(encoding="utf-8").splitlines() if asked.is_file() else []
    problems = []
    if step.returncode != 100:
        problems.append(f"apt-get ended with 100, setup.sh with {step.returncode}: {step.stdout}{step.stderr}")
    if len(lines) != 2 or not lines[0].startswith("update") or lines[1].split()[-len(MISSING):] != list(MISSING):
        problems.append(f"expected one update and one install of {' '.join(MISSING)}, got {lines}")
    return problems


def check_names(source):
    """A function that has the name of one in a sourced script replaces it."""
    functions = {script: set(re.findall(r"^(\w+)\(\) \{", script.read_text(encoding="utf-8"), re.MULTILINE))
                 for script in source.glob("scripts/**/*.sh")}
    problems = []
    for script, own in functions.items():
        for sourced in re.findall(r"^(?:source|\.) (\S+)$", script.read_text(encoding="utf-8"), re.MULTILINE):
            shadowed = own & functions[source / sourced]
            if shadowed:
                problems.append(f"{script}: defines {', '.join(sorted(shadowed))}, which {sourced} brings")
    return problems


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    problems = check_names(source)
    with tempfile.TemporaryDirectory() as folder:
        problems += check_packages(source, pathlib.Path(folder))
    print("\n".join(problems) if problems else "check_setup: all right")
    return 1 if problems else 0


sys.exit(main())
