#!/usr/bin/env bash
# Prints the path of an nvcc that can build fsdp::cuda: $CUDACXX, the one of PATH, of /usr/local/cuda, or what
# `scripts/setup.sh --cuda` installed. It is of CUDA 12.8 or newer and has beside it the headers that LibTorch's own CUDA
# headers include. Fails where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

is_recent() {
  local major minor
  read -r major minor <<<"$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')"
  ((${major:-0} > 12 || (${major:-0} == 12 && ${minor:-0} >= 8)))
}

has_headers() {
  local toolkit header
  toolkit=$(dirname "$(dirname "$(readlink -f "$1")")")
  for header in cuda_runtime_api.h cublas_v2.h cusolverDn.h cusparse.h nccl.h nvtx3/nvToolsExt.h; do
    [ -e "$toolkit/include/$header" ] || [ -e "/usr/include/$header" ] ||
      [ -e ".deps/site-packages/nvidia/nccl/include/$header" ] || return 1
  done
}

for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$PWD/.deps/cuda/nvidia/cu13/bin/nvcc"; do
  if [ -x "$nvcc" ] && is_recent "$nvcc" && has_headers "$nvcc"; then
    echo "$nvcc"
    exit 0
  fi
done
exit 1
