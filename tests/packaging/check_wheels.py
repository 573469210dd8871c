#!/usr/bin/env python3
"""Checks how scripts/setup.sh installs wheels: only files whose hashes it knows.

    check_wheels.py SOURCE

Wheels are made here, so nothing is asked of a package index. One that has its hash is installed; one that was exchanged is
refused with a message and leaves nothing; one without a hash is refused before pip runs. scripts/wheels.txt has a hash for
every wheel that scripts/versions.sh names.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

problems = []


def expect(condition, message):
    if not condition:
        problems.append(message)


def make_wheel(folder, content):
    """A wheel `fsdp_sample` of one file; returns its hash."""
    path = folder / "fsdp_sample-1.0-py3-none-any.whl"
    about = "fsdp_sample-1.0.dist-info/"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("fsdp_sample/lib.txt", content)
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: fsdp-sample\nVersion: 1.0\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(about + "RECORD", f"fsdp_sample/lib.txt,,\n{about}METADATA,,\n{about}WHEEL,,\n{about}RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(source, folder, wheel):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "WHEEL_HASHES": str(folder / "wheels.txt"),
                    "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1",
                    "PATH": os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))}
    script = f'source scripts/wheels.sh && install_wheels "{folder}/incoming" {wheel}'
    return subprocess.run(["bash", "-euc", script], cwd=source, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)


def check_installing(source, folder):
    installed = folder / "incoming/fsdp_sample/lib.txt"
    known = make_wheel(folder, "what was looked at")
    (folder / "wheels.txt").write_text(f"# a comment\nfsdp-other==1.0 \\\n    --hash=sha256:{'0' * 64}\n"
                                       f"fsdp-sample==1.0 \\\n    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{known}\n",
                                       encoding="utf-8")
    good = install(source, folder, "fsdp-sample==1.0")
    expect(good.returncode == 0 and installed.is_file(), f"a wheel that has its hash was not installed: {good.stdout}")
    make_wheel(folder, "what was exchanged")
    bad = install(source, folder, "fsdp-sample==1.0")
    expect(bad.returncode != 0, "a wheel that was exchanged was installed")
    expect("got another file than the one whose hash" in bad.stdout, f"no reason is told: {bad.stdout}")
    expect(not (folder / "incoming").exists(), "something of a wheel that was exchanged is left")
    unknown = install(source, folder, "fsdp-sample==1.1")
    expect(unknown.returncode != 0 and "has no hash of fsdp-sample==1.1" in unknown.stdout,
           f"a wheel without a hash: {unknown.stdout}")


def main():
    source = pathlib.Path(sys.argv[1])
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        print("check_wheels: no pip; skipped")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        check_installing(source, pathlib.Path(folder))
    step = subprocess.run([sys.executable, source / "scripts/hash_wheels.py", "--check"], capture_output=True, text=True,
                          check=False)
    expect(step.returncode == 0, step.stdout)
    print("\n".join(problems) if problems else "check_wheels: all right")
    return 1 if problems else 0


sys.exit(main())
