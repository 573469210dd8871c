#!/usr/bin/env python3
"""Packs a build tree and checks that the packages run wherever they are put.

    check_layout.py BUILD SOURCE

Every library that a file needs is in the package or one of those that any glibc system has; paths to look in are
relative and stay inside; no text file names the machine that built it; the binary tells its version from a folder of
another name, with every library from there; the wheel starts it beside a torch of the right version and refuses others
by name.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import elf

# glibc's, and the two of the compiler that every distribution installs with it.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+))\.so\.\d+")
TEXTS = {".cmake", ".py", ".toml", ".1", ""}
problems = []


def expect(condition, message):
    if not condition:
        problems.append(message)


def check_elf(path, root):
    name = path.relative_to(root)
    dynamic = elf.read_dynamic(path)
    folders = []
    for text in dynamic.run_paths:
        expect(text.startswith("$ORIGIN"), f"{name}: looks for libraries in {text}, which is not relative")
        folder = pathlib.Path(os.path.normpath(text.replace("$ORIGIN", str(path.parent))))
        expect(folder.is_relative_to(root), f"{name}: looks for libraries outside of the package, in {text}")
        folders.append(folder)
    for needed in dynamic.needed:
        if not SYSTEM.fullmatch(needed):
            expect(any((folder / needed).exists() for folder in folders), f"{name}: needs {needed}, which is nowhere")


def check_texts(root, machine_paths):
    for path in root.rglob("*"):
        if path.is_file() and path.suffix in TEXTS and "libtorch" not in path.parts and not elf.is_elf(path):
            text = path.read_text(encoding="utf-8", errors="replace")
            for machine_path in machine_paths:
                expect(machine_path not in text, f"{path.relative_to(root)}: names {machine_path}")


def run(words, **environment):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment})


def check_tarball(root, machine_paths):
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    programs = [path for path in files if elf.is_elf(path)]
    expect(len(programs) >= 8, f"only {len(programs)} programs and libraries in the package")
    for path in programs:
        check_elf(path, root)
    check_texts(root, machine_paths)
    for name in ("bin/fsdp", "bin/fsdp-quickstart", "include/fsdp/fsdp.h", "include/fsdp/c/fsdp_c.h", "lib/cmake/fsdp/fsdpConfig.cmake",
                 "libtorch/include/ATen/ATen.h", "share/man/man1/fsdp-train.1", "share/fsdp/configs/quickstart.toml"):
        expect((root / name).is_file(), f"{name}: is missing")
    version = run([root / "bin/fsdp", "--version"])
    expect(re.match(r"fsdp \d+\.\d+\.\d+ .*LibTorch \d+\.\d+\.\d+", version.stdout), f"--version: {version}")
    for program, least in (("bin/fsdp", 3), ("lib/libfsdp_verbs.so", 8)):
        loaded = run(["ldd", root / program]).stdout
        for name, place in re.findall(r"(\S+) => (.+) \(0x", loaded):
            expect(SYSTEM.fullmatch(name) or place.startswith(str(root)), f"{program} loads {name} from {place}")
        expect(len(loaded.splitlines()) > least, f"{program} loads too little: {loaded}")
        expect(("libtorch" in loaded) == (program != "bin/fsdp"), f"{program}: LibTorch is for the verbs alone: {loaded}")


def check_cmake(root, scratch):
    """A program elsewhere finds the library, and the LibTorch that came with it."""
    (scratch / "program").mkdir()
    (scratch / "program" / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(program CXX)\nfind_package(fsdp REQUIRED)\n"
        'get_target_property(kind fsdp::fsdp TYPE)\nmessage(STATUS "${kind} with ${LIBTORCH_DIR}")\n')
    result = run(["cmake", "-S", scratch / "program", "-B", scratch / "program/build", f"-DCMAKE_PREFIX_PATH={root}"],
                 PATH=os.environ["PATH"])
    expect(result.returncode == 0 and f"SHARED_LIBRARY with {root}/libtorch" in result.stdout, f"find_package: {result}")


def check_c(root, source, scratch):
    """A program in C needs the header, the library and a C compiler."""
    program = scratch / "c_training"
    built = run(["cc", "-std=c11", source / "tests/c/c_training.c", "-I", root / "include", "-L", root / "lib", "-lfsdp_c",
                 f"-Wl,-rpath,{root}/lib", "-o", program], PATH=os.environ["PATH"])
    expect(built.returncode == 0, f"a program in C: {built}")
    if built.returncode == 0:
        started = run([program])
        expect(started.returncode == 2 and not started.stderr, f"a program in C without arguments: {started}")


def install_wheel(wheel, site):
    """As pip does: files, and the executable bit of those that have one."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = pathlib.Path(archive.extract(entry, site))
            if entry.external_attr >> 16 & 0o100:
                path.chmod(0o755)
        record = next(name for name in archive.namelist() if name.endswith("RECORD"))
        recorded = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
        expect(recorded == set(archive.namelist()), "RECORD does not list the files of the wheel")


def start(site, *more):
    code = "import sys; sys.argv = ['fsdp', '--version']; from libfsdp.start import main; main()"
    return run([sys.executable, "-S", "-c", code], PYTHONPATH=os.pathsep.join([str(site), *map(str, more)]))


def check_wheel(wheel, root, scratch):
    site, elsewhere, old = scratch / "site", scratch / "elsewhere", scratch / "old"
    install_wheel(wheel, site)
    without = start(site)
    expect(without.returncode == 2 and re.search(r"got no torch .* pip install 'torch==2\.\d+\.\*'", without.stderr),
           f"without torch: {without}")
    version = re.search(r"LibTorch (\d+\.\d+\.\d+)", run([root / "bin/fsdp", "--version"]).stdout).group(1)
    for folder, text in ((old, "1.0.0+cpu"), (elsewhere, version + "+cpu")):
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").touch()
        (folder / "torch" / "version.py").write_text(f"__version__ = '{text}'\n")
    (elsewhere / "torch" / "lib").symlink_to(root / "libtorch" / "lib")
    wrong = start(site, old)
    expect(wrong.returncode == 2 and "got torch 1.0.0+cpu in " in wrong.stderr and wrong.stderr.count("\n") == 1,
           f"with another torch: {wrong}")
    right = start(site, elsewhere)
    expect(right.returncode == 0 and right.stdout.startswith("fsdp "), f"with the right torch: {right}")
    shutil.copytree(elsewhere / "torch", site / "torch", symlinks=True)
    beside = start(site)
    expect(beside.returncode == 0 and beside.stdout == right.stdout, f"with torch beside it: {beside}")


def main():
    build, source = (pathlib.Path(text).resolve() for text in sys.argv[1:])
    # In the build tree, where hard links spare copying LibTorch.
    with tempfile.TemporaryDirectory(dir=build) as folder:
        scratch = pathlib.Path(folder)
        environment = {**os.environ, "FSDP_BUILD": str(build), "FSDP_PACKAGES": str(scratch / "packages")}
        package = [str(source / "scripts/package.sh")]
        subprocess.run(package + ["stage", str(scratch / "staged")], check=True, env=environment)
        moved = scratch / "another place"
        (scratch / "staged").rename(moved)
        check_tarball(moved, [str(build), str(source)])
        check_cmake(moved, scratch)
        check_c(moved, source, scratch)
        subprocess.run(package + ["wheel", str(moved)], check=True, env=environment)
        check_wheel(next((scratch / "packages").glob("*.whl")), moved, scratch)
    print("\n".join(problems) if problems else "check_layout: no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
