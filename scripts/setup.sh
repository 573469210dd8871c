#!/usr/bin/env bash
# Makes a checkout ready: system packages, LibTorch under .deps/, a release build, and the link bin/fsdp.
# Idempotent: a second run only builds what changed.
#
#   scripts/setup.sh                       everything a CPU build needs
#   scripts/setup.sh --parquet             and the plug-in that reads parquet (pyarrow under .deps/)
#   scripts/setup.sh --cuda                and the CUDA library: with nvcc 12.8 or newer if there is one, else with NVIDIA's
#                                          compiler wheels under .deps/. Needs no GPU; where there is one, also installs
#                                          what libtorch_cuda.so is linked to
#   LIBTORCH_DIR=/path scripts/setup.sh    use that LibTorch (folder with include/ and lib/) instead of installing one
#   FSDP_TARGETS="all" scripts/setup.sh    what to build (default: fsdp_app)
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/packages.sh
source scripts/versions.sh
source scripts/wheels.sh
PACKAGES="cmake ninja-build g++ ccache mold python3 python3-pip nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libfmt-dev libhwy-dev libxxhash-dev zlib1g-dev libzstd-dev libsimdjson-dev libpcre2-dev libutf8proc-dev libgtest-dev libgmock-dev
  nettle-dev librapidcheck-dev libbenchmark-dev patchelf"

say() { printf '== %s\n' "$*"; }

install_missing_packages() {
  local missing=()
  for package in $PACKAGES; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
  done
  # A program that is already here, from wherever, needs no package.
  local needed=()
  for package in "${missing[@]}"; do
    case "$package" in
      cmake | ccache | mold | python3) command -v "$package" >/dev/null || needed+=("$package") ;;
      ninja-build) command -v ninja >/dev/null || needed+=("$package") ;;
      patchelf) command -v patchelf >/dev/null || needed+=("$package") ;;
      g++) command -v g++ >/dev/null || needed+=("$package") ;;
      python3-pip) python3 -m pip --version >/dev/null 2>&1 || needed+=("$package") ;;
      *) needed+=("$package") ;;
    esac
  done
  [ ${#needed[@]} -eq 0 ] && return
  if ! command -v apt-get >/dev/null; then
    echo "setup: install these with your package manager: ${needed[*]}" >&2
    exit 2
  fi
  say "installing system packages: ${needed[*]}"
  install_packages "${needed[@]}"
}

install_libtorch() {
  local site=.deps/site-packages
  [ -f "$site/torch/lib/libtorch_cpu.so" ] && [ -f "$site/.complete-$TORCH_VERSION" ] && return
  say "installing LibTorch $TORCH_VERSION into .deps (about 530 MB to download, 1.2 GB on disk)"
  # shellcheck disable=SC2086
  install_wheels .deps/incoming $LIBTORCH_WHEELS
  rm -rf "$site"
  mv .deps/incoming "$site"
  touch "$site/.complete-$TORCH_VERSION"
}

install_pyarrow() {
  local folder=.deps/pyarrow
  [ -f "$folder/.complete-$PYARROW_VERSION" ] && return
  say "installing pyarrow $PYARROW_VERSION into .deps (about 50 MB to download)"
  # shellcheck disable=SC2086
  install_wheels .deps/incoming-pyarrow $PYARROW_WHEELS
  rm -rf "$folder"
  mv .deps/incoming-pyarrow "$folder"
  touch "$folder/.complete-$PYARROW_VERSION"
}

install_nvcc() {
  local folder=.deps/cuda toolkit=.deps/incoming-cuda/nvidia/cu13
  [ -f "$folder/.complete-$CUDA_COMPONENT_VERSION" ] && return
  say "installing nvcc $CUDA_COMPONENT_VERSION and CUDA headers into .deps (about 1.1 GB to download, 280 MB on disk)"
  # shellcheck disable=SC2086
  install_wheels .deps/incoming-cuda $NVCC_WHEELS
  mv .deps/incoming-cuda/nvidia/nccl/include/* "$toolkit/include/"
  rm -rf .deps/incoming-cuda/nvidia/nccl "$toolkit"/lib/lib{cublas,cusolver,cusparse,nvblas}*
  # Names by which nvcc and CMake look for libraries, and which wheels leave out.
  ln -sfn lib "$toolkit/lib64"
  ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
  rm -rf "$folder"
  mv .deps/incoming-cuda "$folder"
  touch "$folder/.complete-$CUDA_COMPONENT_VERSION"
}

# Beside torch/, where libtorch_cuda.so looks for them.
install_cuda_libraries() {
  local site=.deps/site-packages
  [ -f "$site/.complete-cuda-$TORCH_VERSION" ] && return
  say "installing the CUDA libraries of LibTorch into .deps (about 2 GB to download)"
  # shellcheck disable=SC2086
  install_wheels .deps/incoming-cuda $CUDA_LIBRARY_WHEELS
  cp -rf .deps/incoming-cuda/nvidia/. "$site/nvidia/"
  rm -rf .deps/incoming-cuda
  touch "$site/.complete-cuda-$TORCH_VERSION"
}

# Ninja's "[N/M] what" as N of M and the minutes that are left at this pace: one line that changes on a terminal, else a
# line for each tenth. Everything else, warnings and errors, stays as it is.
show_progress() {
  local line done all left last=-1
  SECONDS=0
  while IFS= read -r line; do
    if [[ ! $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      [[ $line == "ninja: no work to do." ]] || printf '%s\n' "$line"
      continue
    fi
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    left=$(((SECONDS * (all - done) / done + 59) / 60))
    if [ -t 1 ]; then
      printf '\r== building: %d of %d, about %d min left ' "$done" "$all" "$left"
      [ "$done" -lt "$all" ] || printf '\n'
    elif [ $((10 * done / all)) -gt "$last" ]; then
      last=$((10 * done / all))
      say "building: $done of $all, about $left min left"
    fi
  done
}

main() {
  local parquet="" cuda=""
  for argument in "$@"; do
    case "$argument" in
      --parquet) parquet=fsdp_parquet ;;
      --cuda) cuda=fsdp_cuda ;;
      *)
        echo "usage: scripts/setup.sh [--parquet] [--cuda]" >&2
        exit 2
        ;;
    esac
  done
  install_missing_packages
  local libtorch="${LIBTORCH_DIR:-}"
  if [ -z "$libtorch" ]; then
    install_libtorch
    libtorch="$PWD/.deps/site-packages/torch"
    [ -z "$cuda" ] || [ ! -e /proc/driver/nvidia/version ] || install_cuda_libraries
  fi
  [ -z "$parquet" ] || install_pyarrow
  local options=(-DLIBTORCH_DIR="$libtorch" -DFSDP_CUDA=OFF)
  if [ -n "$cuda" ]; then
    scripts/find_nvcc.sh >/dev/null || install_nvcc
    local nvcc
    nvcc=$(scripts/find_nvcc.sh)
    say "nvcc: ${nvcc#"$PWD"/}"
    options=(-DLIBTORCH_DIR="$libtorch" -DFSDP_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc")
  fi
  say "configuring build/release with LibTorch in ${libtorch#"$PWD"/}"
  cmake --preset release "${options[@]}" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
  rm -f build-configure.log
  # shellcheck disable=SC2086
  cmake --build build/release --target ${FSDP_TARGETS:-fsdp_app} $parquet $cuda | show_progress
  case " ${FSDP_TARGETS:-fsdp_app} " in
    *" fsdp_app "* | *" all "*)
      mkdir -p bin
      ln -sfn ../build/release/bin/fsdp bin/fsdp
      say "ready: bin/fsdp"
      ;;
    *) say "ready: $FSDP_TARGETS in build/release" ;;
  esac
}

main "$@"
