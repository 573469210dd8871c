#!/usr/bin/env bash
# Measures training on one GPU: a step of SmolLM3-3B at 8192 tokens with each preset of recomputation, copied weights and
# modelled networks; PyTorch's fully_shard with the model of transformers, eager and compiled, where that Python package
# is; the parts of a step beside what bounds them, and kernels beside LibTorch's. Prints tables, writes
# build/bench/gpu.json. Under 4 minutes on an H200 once it is built.
#
#   scripts/bench_gpu.sh                    needs an NVIDIA GPU of about 80 GB
#   scripts/bench_gpu.sh --try              everything once with a tiny model on the CPU: does it work?
#   FSDP_BUILD=build/other scripts/...      use that configured build tree instead of setting up build/release
set -euo pipefail
cd "$(dirname "$0")/.."

TARGETS="gpu_step gpu_parts gpu_kernels hook_cost"

main() {
  if [ -n "${FSDP_BUILD:-}" ]; then
    cmake --build "$FSDP_BUILD" --target $TARGETS
  elif [[ " $* " == *" --try "* ]]; then
    FSDP_TARGETS="$TARGETS" scripts/setup.sh
  else
    FSDP_TARGETS="$TARGETS fsdp_cuda" scripts/setup.sh --cuda
  fi
  python3 -W ignore benchmarks/gpu.py "$@"
}

main "$@"
