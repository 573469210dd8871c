#!/usr/bin/env bash
# Builds library, trainer and tests against several versions of LibTorch, runs the fast tests against each, and prints a
# line per version. Exits with 1 if one of them fails.
#
#   scripts/matrix.sh 2.11.0 2.15.0
#   scripts/matrix.sh --compile-only 2.15.0    builds, runs nothing
#
# Each version goes to .deps/matrix/VERSION (about 530 MB to download) and build/matrix/VERSION. System packages are those
# of scripts/setup.sh, which must have run.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*"; }

# Versions that nobody chose before: unlike those of scripts/setup.sh, their wheels have no hashes here that they are
# compared with. The wheel, and the two CUDA libraries that libtorch_cpu.so is linked to, in the versions which it names.
install_libtorch() {
  local version=$1 folder=.deps/matrix/$1 incoming=.deps/incoming-matrix toolkit
  local pip=(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile
    --only-binary=:all: --target "$incoming")
  [ -f "$folder/.complete" ] && return
  say "installing LibTorch $version into $folder"
  rm -rf "$incoming"
  "${pip[@]}" --no-deps "torch==$version" || return 1
  toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit\[[^]]*\]==\([0-9.]*\).*/\1/p' "$incoming"/torch-*.dist-info/METADATA | sed -n 1p)
  [ -z "$toolkit" ] || "${pip[@]}" "cuda-toolkit[cudart,cupti]==$toolkit" || return 1
  rm -rf "$folder"
  mkdir -p .deps/matrix
  mv "$incoming" "$folder"
  touch "$folder/.complete"
}

# Sets `result` to what the table says of a version.
try_version() {
  local version=$1 build=build/matrix/$1 log=build/matrix/$1.log
  result="could not be installed"
  install_libtorch "$version" || return 1
  result="does not build: $log"
  mkdir -p "$build"
  say "building against $version"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DFSDP_CUDA=OFF \
    -DLIBTORCH_DIR="$PWD/.deps/matrix/$version/torch" >"$log" 2>&1 || return 1
  cmake --build "$build" >>"$log" 2>&1 || return 1
  result="builds"
  [ -z "$compile_only" ] || return 0
  say "testing against $version"
  ctest --test-dir "$build" -L fast -j 4 --no-tests=error --output-on-failure >>"$log" 2>&1
  local status=$?
  result="$(grep -o '[0-9]*% tests passed.*' "$log" | tail -1): $log"
  return $status
}

main() {
  compile_only=""
  if [ "${1:-}" = --compile-only ]; then
    compile_only=1
    shift
  fi
  if [ $# -eq 0 ] || [[ ! $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
    echo "usage: scripts/matrix.sh [--compile-only] VERSION... (got '${*:-nothing}', expected versions such as 2.15.0)" >&2
    exit 2
  fi
  local failed=0 lines=()
  for version in "$@"; do
    try_version "$version" || failed=1
    lines+=("$version  $result")
  done
  say "LibTorch"
  printf '%s\n' "${lines[@]}"
  exit $failed
}

main "$@"
