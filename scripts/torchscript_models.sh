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
source scripts/versions.sh
TORCHVISION_VERSION=0.29.2

# The LibTorch of scripts/setup.sh is a whole PyTorch for Python 3.11; what it lacks is added.
install_packages() {
  local pip=(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$FOLDER/packages")
  [ ! -d "$FOLDER/packages/transformers" ] || return 0
  # shellcheck disable=SC2086
  "${pip[@]}" filelock typing-extensions sympy networkx jinja2 fsspec numpy pillow $CUDA_LIBRARIES_TO_IMPORT \
    "$(grep -o 'nvidia-nccl-cu[0-9.=]*' <<<"$CUDA_LIBRARIES")"
  "${pip[@]}" --no-deps "torchvision==$TORCHVISION_VERSION"
  "${pip[@]}" --upgrade-strategy only-if-needed "transformers==$TRANSFORMERS_VERSION"
}

make_files() {
  local libraries
  libraries=$(find "$FOLDER/packages/nvidia" -maxdepth 2 -name lib | paste -sd:)
  PYTHONPATH="$PWD/.deps/site-packages:$FOLDER/packages" LD_LIBRARY_PATH="$libraries" \
    python3 -W ignore tests/interop/torchscript_files.py "$FOLDER/files" "$@"
}

install_packages
make_files "$@"
cmake --build "$BUILD" --target script_parity
"$BUILD/bin/script_parity" "$FOLDER"/files/*.pt
