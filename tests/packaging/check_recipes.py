#!/usr/bin/env python3
"""Checks packaging/: that its files say what the program does.

    check_recipes.py FSDP SOURCE

The JobSet is read by a YAML parser; its numbers agree; it stops for the exit codes that docs/clusters.md says no restart
mends; and ranks that are started with its environment and secret, here on one host, find each other. The Dockerfile takes
the tarball by the name that scripts/package.sh gives it. Recipes of Conan compile as Python and name folders that exist.
The port of vcpkg has the project's version, is read by CMake, and sets options that exist; without a LibTorch it says so.
"""

import ast
import fnmatch
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("check_recipes: no Python module yaml; skipped")
    sys.exit(77)

HERE = "127.0.0.1"
problems = []


def expect(condition, message):
    if not condition:
        problems.append(message)


def run_ranks(fsdp, container, secret):
    """Ranks with the container's environment, but here; returns their outputs and exit codes."""
    with socket.create_server((HERE, 0)) as free:
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(4):
        values = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(rank),
                  "metadata.labels['jobset.sigs.k8s.io/restart-attempt']": "2"}
        environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
        for entry in container["env"]:
            if "value" in entry:
                environment[entry["name"]] = entry["value"]
            else:
                environment[entry["name"]] = values[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        environment |= {"MASTER_ADDR": HERE, "MASTER_PORT": port, "FSDP_JOB_SECRET_FILE": str(secret)}
        ranks.append(subprocess.Popen([fsdp, "doctor"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True))
    return [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks]


def check_jobset(fsdp, source):
    text = (source / "packaging/kubernetes/jobset.yaml").read_text(encoding="utf-8")
    jobset = yaml.safe_load(text)
    expect(jobset["kind"] == "JobSet" and jobset["apiVersion"].startswith("jobset.x-k8s.io/"), "no JobSet")
    group = jobset["spec"]["replicatedJobs"][0]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    expect(job["parallelism"] == job["completions"] == int(environment["WORLD_SIZE"]), "the numbers of pods differ")
    name = jobset["metadata"]["name"]
    expect(environment["MASTER_ADDR"] == f"{name}-{group['name']}-0-0.{name}", "MASTER_ADDR is not pod 0")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    expect(volumes["secret"]["secret"]["defaultMode"] == 0o400, "the secret is open to others")
    table = (source / "docs/clusters.md").read_text(encoding="utf-8")
    final = re.search(r"^\| ([0-9, ]+) \| .*not before something is changed", table, re.MULTILINE).group(1)
    codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    expect(codes == [int(code) for code in final.split(",")], f"stops for {codes}, docs/clusters.md says {final}")
    with tempfile.TemporaryDirectory() as folder:
        secret = pathlib.Path(folder) / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef\n", encoding="ascii")
        secret.chmod(volumes["secret"]["secret"]["defaultMode"])
        results = run_ranks(fsdp, container, secret)
    for output, code in results:
        expect(code == 0, f"a rank with the environment of the JobSet ends with {code}: {output}")
    expect(any(re.search(r"^ok +ranks +4\b", output, re.MULTILINE) for output, _ in results), f"not 4: {results[0][0]}")


def check_dockerfile(source):
    text = (source / "packaging/docker/Dockerfile").read_text(encoding="utf-8")
    pattern = re.search(r"^ADD (\S+) /opt/$", text, re.MULTILINE).group(1)
    script = (source / "scripts/package.sh").read_text(encoding="utf-8")
    name = re.search(r"name=(fsdp-\S+)", script).group(1).replace("$version", "1.2.3").replace("$(uname -m)", "x86_64")
    expect(fnmatch.fnmatch(f"{name}.tar.gz", pattern), f"{pattern} does not take {name}.tar.gz")


def check_conan(source):
    for path in (source / "packaging/conan").rglob("conanfile.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "PARTS":
                for part in ast.literal_eval(node.value):
                    expect((source / part).exists(), f"{path.name}: no {part}")


# The functions of vcpkg that the port calls, as CMake scripts that say what they got.
VCPKG = """set(CURRENT_PORT_DIR "{port}")
set(CURRENT_PACKAGES_DIR "{scratch}")
set(PORT libfsdp)
function(vcpkg_cmake_configure)
  message(STATUS "configure;${{ARGN}}")
endfunction()
function(vcpkg_cmake_install)
  message(STATUS "install;${{ARGN}}")
endfunction()
function(vcpkg_cmake_config_fixup)
  message(STATUS "fixup;${{ARGN}}")
endfunction()
include("${{CURRENT_PORT_DIR}}/portfile.cmake")
"""


def read_port(port, libtorch):
    """What the portfile does, and whether it came to its end."""
    with tempfile.TemporaryDirectory() as scratch:
        script = pathlib.Path(scratch) / "port.cmake"
        script.write_text(VCPKG.format(port=port, scratch=scratch), encoding="utf-8")
        result = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True, timeout=60,
                                env={"PATH": os.environ["PATH"], "LIBTORCH_DIR": str(libtorch)})
        return " ".join((result.stdout + result.stderr).split()), result.returncode == 0


def check_vcpkg(source):
    port = (source / "packaging/vcpkg/libfsdp").resolve()
    manifest = json.loads((port / "vcpkg.json").read_text(encoding="utf-8"))
    project = (source / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(fsdp VERSION ([0-9.]+)", project).group(1)
    expect(manifest["name"] == port.name and manifest["version"] == version, f"vcpkg.json: not {port.name} {version}")
    with tempfile.TemporaryDirectory() as libtorch:
        told, worked = read_port(port, libtorch)
        expect(not worked and "Set the environment variable" in told, f"the port takes an empty folder as LibTorch: {told}")
        header = pathlib.Path(libtorch) / "include/ATen/ATen.h"
        header.parent.mkdir(parents=True)
        header.touch()
        told, worked = read_port(port, libtorch)
    expect(worked, f"the port does not come to its end: {told}")
    expect(f"SOURCE_PATH;{source.resolve()};" in told, f"the port builds another source: {told}")
    for option in re.findall(r"-D(FSDP_\w+)=", told):
        expect(f"option({option} " in project, f"the port sets {option}, which the project does not have")
    expect("fixup;PACKAGE_NAME;fsdp;" in told, f"the port does not move fsdpConfig.cmake: {told}")


def main():
    fsdp, source = sys.argv[1], pathlib.Path(sys.argv[2])
    check_jobset(fsdp, source)
    check_dockerfile(source)
    check_conan(source)
    check_vcpkg(source)
    print("\n".join(problems) if problems else "check_recipes: no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
