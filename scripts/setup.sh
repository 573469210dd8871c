#!/usr/bin/env bash
# Makes a checkout ready: system packages, LibTorch under .deps/, a release build, and the link bin/fsdp.
# Idempotent: a second run only builds what changed.
#
#   scripts/setup.sh                       everything a CPU build needs
#   scripts/setup.sh --parquet             and the plug-in that reads parquet (pyarrow under .deps/)
#   LIBTORCH_DIR=/path scripts/setup.sh    use that LibTorch (folder with include/ and lib/) instead of installing one
#   FSDP_TARGETS="all" scripts/setup.sh    what to build (default: fsdp_app)
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH_VERSION=2.11.0
CUDA_RUNTIME_VERSION=13.0.96 # libtorch_cpu.so of the wheel is linked to these two; no driver is needed
CUPTI_VERSION=13.0.85
PYARROW_VERSION=26.0.1
PACKAGES="cmake ninja-build g++ ccache mold python3 python3-pip nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libfmt-dev libxxhash-dev zlib1g-dev libzstd-dev libsimdjson-dev libpcre2-dev libutf8proc-dev libgtest-dev libgmock-dev
  librapidcheck-dev libbenchmark-dev"

say() { printf '== %s\n' "$*"; }

install_packages() {
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
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo"
  say "installing system packages: ${needed[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${needed[@]}" >/dev/null
}

install_libtorch() {
  local site=.deps/site-packages
  [ -f "$site/torch/lib/libtorch_cpu.so" ] && [ -f "$site/.complete-$TORCH_VERSION" ] && return
  say "installing LibTorch $TORCH_VERSION into .deps (about 530 MB to download, 1.2 GB on disk)"
  rm -rf .deps/incoming
  # The C++ libraries are the same in the wheels of all Python versions.
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
    --only-binary=:all: --target .deps/incoming \
    "torch==$TORCH_VERSION" "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cupti==$CUPTI_VERSION"
  rm -rf "$site"
  mv .deps/incoming "$site"
  touch "$site/.complete-$TORCH_VERSION"
}

# Only its C++ libraries and headers are used: those of any Python version, and nothing that pyarrow needs in Python.
install_pyarrow() {
  local folder=.deps/pyarrow
  [ -f "$folder/.complete-$PYARROW_VERSION" ] && return
  say "installing pyarrow $PYARROW_VERSION into .deps (about 50 MB to download)"
  rm -rf .deps/incoming-pyarrow "$folder"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
    --only-binary=:all: --target .deps/incoming-pyarrow "pyarrow==$PYARROW_VERSION"
  mv .deps/incoming-pyarrow "$folder"
  touch "$folder/.complete-$PYARROW_VERSION"
}

main() {
  local parquet=""
  for argument in "$@"; do
    case "$argument" in
      --parquet) parquet=fsdp_parquet ;;
      *)
        echo "usage: scripts/setup.sh [--parquet]" >&2
        exit 2
        ;;
    esac
  done
  install_packages
  local libtorch="${LIBTORCH_DIR:-}"
  if [ -z "$libtorch" ]; then
    install_libtorch
    libtorch="$PWD/.deps/site-packages/torch"
  fi
  [ -z "$parquet" ] || install_pyarrow
  say "configuring build/release with LibTorch in ${libtorch#"$PWD"/}"
  cmake --preset release -DLIBTORCH_DIR="$libtorch" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
  rm -f build-configure.log
  say "building"
  # shellcheck disable=SC2086
  cmake --build build/release --target ${FSDP_TARGETS:-fsdp_app} $parquet
  mkdir -p bin
  ln -sfn ../build/release/bin/fsdp bin/fsdp
  say "ready: bin/fsdp"
}

main "$@"
