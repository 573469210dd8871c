#!/usr/bin/env bash
# Builds the benchmarks, installs their peer (PyTorch, in .deps/peer) where it is missing, and times both in one run.
#
#   scripts/bench.sh                        all benchmarks
#   scripts/bench.sh step_time              one; further arguments go to benchmarks/compare.py:
#   scripts/bench.sh step_time --tokens 16 --rounds 5
#   FSDP_CPU_ISA=avx2 scripts/bench.sh step_time   ours and the peer held to an instruction set
#   scripts/bench.sh kernels --isa native avx2 sse4
#   FSDP_BUILD=build/other scripts/bench.sh use that configured build tree instead of setting up build/release
#
# Prints tables and writes build/bench/NAME.json. Run nothing else meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/versions.sh
PEER=.deps/peer
TARGETS="step_time collectives kernels hook_cost functional checkpoint documents generation import_model fsdp_app"

# The LibTorch of scripts/setup.sh is a whole PyTorch for Python 3.11; what it lacks is added. Other Pythons get their own.
install_peer() {
  local pip=(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$PEER")
  import_peer 2>/dev/null && return
  rm -rf "$PEER"
  if [ -d .deps/site-packages/torch ] && python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "== installing what PyTorch $TORCH_VERSION needs to be imported, into $PEER (about 150 MB to download)"
    # shellcheck disable=SC2086
    "${pip[@]}" filelock typing-extensions sympy networkx jinja2 fsspec numpy $CUDA_LIBRARIES_TO_IMPORT
    import_peer 2>/dev/null && return
    echo "== installing the CUDA libraries that PyTorch is linked to (about 1.5 GB to download)"
    # shellcheck disable=SC2086
    "${pip[@]}" --upgrade $CUDA_LIBRARIES
  else
    echo "== installing PyTorch $TORCH_VERSION into $PEER (about 2.5 GB to download)"
    "${pip[@]}" "torch==$TORCH_VERSION" numpy
  fi
  import_peer
}

# What generation, import_model and quickstart are compared with.
install_transformers() {
  python3 -W ignore -c 'import transformers' 2>/dev/null && return
  echo "== installing transformers $TRANSFORMERS_VERSION into $PEER (about 60 MB to download)"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$PEER" \
    --upgrade-strategy only-if-needed "transformers==$TRANSFORMERS_VERSION"
}

# With the paths under which the peer is run.
import_peer() {
  PYTHONPATH="$PWD/.deps/site-packages:$PWD/$PEER"
  [ -d "$PEER/torch" ] && PYTHONPATH="$PWD/$PEER"
  # The loader of these libraries looks beside torch, not here.
  LD_LIBRARY_PATH="$(find "$PWD/$PEER/nvidia" -maxdepth 2 -name lib 2>/dev/null | paste -sd: -)"
  export PYTHONPATH LD_LIBRARY_PATH
  python3 -W ignore -c 'import torch.distributed.fsdp'
}

main() {
  local targets=$TARGETS
  case "$*" in kernels | "kernels --"*) targets=kernels ;; esac  # its peer is the LibTorch that it is linked to
  if [ -z "${FSDP_BUILD:-}" ]; then
    FSDP_TARGETS="$targets" scripts/setup.sh --parquet
  else
    # shellcheck disable=SC2086
    cmake --build "$FSDP_BUILD" --target $targets
  fi
  [ "$targets" = kernels ] || install_peer
  case " $* " in *" generation "* | *" import_model "* | *" quickstart "* | "  ") install_transformers ;; esac
  python3 -W ignore benchmarks/compare.py "$@"
}

main "$@"
