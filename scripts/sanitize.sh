#!/usr/bin/env bash
# Builds everything with a sanitizer of g++, runs the fast tests with it, and prints a line per sanitizer. Exits with 1 if
# one of them fails.
#
#   scripts/sanitize.sh                                address and undefined together, then thread
#   scripts/sanitize.sh address,undefined -R Plan      one of them; further arguments go to ctest in place of -L fast
#
# Each has its build tree, build/sanitize/address-undefined or the like, with a log beside it. System packages and
# LibTorch are those of scripts/setup.sh, which must have run.
set -euo pipefail
cd "$(dirname "$0")/.."

# Sets `result` to what the table says of a sanitizer.
try_sanitizer() {
  local name=$1 build=build/sanitize/${1//,/-}  # a comma would end an option of the linker
  local log=$build.log
  shift
  result="does not build: $log"
  mkdir -p "$build"
  echo "== building with -fsanitize=$name"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE= -DCMAKE_CXX_FLAGS=-O1 -DFSDP_CUDA=OFF -DFSDP_SANITIZE="$name" \
    >"$log" 2>&1 || return 1
  cmake --build "$build" >>"$log" 2>&1 || return 1
  echo "== testing with -fsanitize=$name"
  local status=0
  ctest --test-dir "$build" -j 2 --no-tests=error --output-on-failure "$@" >>"$log" 2>&1 || status=$?
  result="$(grep -o '[0-9]*% tests passed.*' "$log" | tail -1): $log"
  return $status
}

main() {
  local sanitizers=("address,undefined" thread) which=(-L fast)
  if [ $# -gt 0 ]; then
    if [[ ! $1 =~ ^(address|undefined|thread)(,(address|undefined))?$ ]]; then
      echo "usage: scripts/sanitize.sh [address|undefined|address,undefined|thread [CTEST ARGUMENTS]] (got '$*')" >&2
      exit 2
    fi
    sanitizers=("$1")
    shift
    [ $# -eq 0 ] || which=("$@")
  fi
  local failed=0 lines=()
  for sanitizer in "${sanitizers[@]}"; do
    try_sanitizer "$sanitizer" "${which[@]}" || failed=1
    lines+=("$sanitizer  $result")
  done
  echo "== sanitizers"
  printf '%s\n' "${lines[@]}"
  exit $failed
}

main "$@"
