#!/usr/bin/env bash
# Sets the checkout up and runs all tests; arguments go to ctest, e.g. `scripts/test.sh -L fast`. FSDP_SETUP holds options
# of scripts/setup.sh, as in FSDP_SETUP=--parquet. The CUDA library and its tests are built too where there is an nvcc, or
# with FSDP_SETUP=--cuda; what of them cannot run here is reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

has_cuda_libtorch() { [ -z "${LIBTORCH_DIR:-}" ] || [ -e "$LIBTORCH_DIR/lib/libtorch_cuda.so" ]; }

options=${FSDP_SETUP:-}
if [[ " $options " != *" --cuda "* ]]; then
  if has_cuda_libtorch && scripts/find_nvcc.sh >/dev/null; then
    options="$options --cuda"
  else
    echo "== no nvcc 12.8 or newer with its headers, or a LibTorch without CUDA: the CUDA library and its tests are left out"
  fi
fi
# shellcheck disable=SC2086
FSDP_TARGETS=all scripts/setup.sh $options
# Four at a time on two cores: ranks wait for each other, and processes for the disk. Under the batch policy threads of
# Gloo that wake do not displace those they wait for (docs/decisions/house.md, 157).
batch=""
! chrt --batch 0 true 2>/dev/null || batch="chrt --batch 0"
$batch ctest --test-dir build/release --output-on-failure --no-tests=error -j 4 "$@"
# A processor without AVX-512 has run them so already.
if [ $# -eq 0 ] && grep -qw avx512f /proc/cpuinfo; then
  echo "== the fast tests of what has kernels once more, held to AVX2, which most processors have"
  FSDP_CPU_ISA=avx2 $batch ctest --test-dir build/release --output-on-failure --no-tests=error -j 4 -L fast -LE no-kernels
fi
