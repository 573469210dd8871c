#!/usr/bin/env bash
# TorchScript files of torchvision and transformers models, made and then sharded with ZeRO-2 and ZeRO-3 against the
# unsharded module. Not part of the tests: it downloads about 250 MB.
#
#   scripts/torchscript_models.sh [FOLDER [NAME ...]]
#
# FOLDER, outside of this tree, gets the Python packages and the files; default: a temporary one. NAME: some models only.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=${1:-$(mktemp -d)}
[ $# -eq 0 ] || shift
BUILD=${FSDP_BUILD:-build/release}
TORCHVISION_VERSION=0.26.0
TRANSFORMERS_VERSION=5.23.0

# The LibTorch of scripts/setup.sh is a whole PyTorch for Python 3.11; what it lacks is added.
install_packages() {
  export PYTHONPATH="$PWD/.deps/site-packages:$FOLDER/packages"
  local pip=(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$FOLDER/packages")
  if [ ! -d "$FOLDER/packages/transformers" ]; then
    "${pip[@]}" filelock typing-extensions sympy networkx jinja2 fsspec numpy pillow \
      "cuda-toolkit[cufile]==13.0.2" nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5
    "${pip[@]}" --no-deps "torchvision==$TORCHVISION_VERSION"
    "${pip[@]}" --upgrade-strategy only-if-needed "transformers==$TRANSFORMERS_VERSION"
  fi
  LD_LIBRARY_PATH="$(find "$FOLDER/packages/nvidia" -maxdepth 2 -name lib | paste -sd:)"
  export LD_LIBRARY_PATH
}

(install_packages && python3 -W ignore tests/interop/torchscript_files.py "$FOLDER/files" "$@")
cmake --build "$BUILD" --target script_parity
"$BUILD/bin/script_parity" "$FOLDER"/files/*.pt
