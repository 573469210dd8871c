"""Python packages that only the fuzzing tools need, installed on demand into .deps/fuzz."""

import importlib
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[3] / ".deps" / "fuzz"
VERSIONS = {"safetensors": "0.7.0", "xxhash": "3.6.0", "zstandard": "0.25.0"}


def require(name):
    """The module `name`, of the version above."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--root-user-action=ignore", "--target", str(FOLDER), f"{name}=={VERSIONS[name]}"], check=True)
        importlib.invalidate_caches()
        return importlib.import_module(name)
