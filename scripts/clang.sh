#!/usr/bin/env bash
# Builds library, trainer and tests with clang 16 or newer in place of g++, runs the fast tests, and prints a line. Exits
# with 1 if one of them fails, or clang warns of anything.
#
#   scripts/clang.sh                           with the newest clang++ that is here; installs one where there is none
#   scripts/clang.sh -R Plan                   arguments go to ctest in place of -L fast
#   FSDP_CLANG=clang++-19 scripts/clang.sh     with that one
#
# Builds in build/clang, with a log beside it. Other system packages and LibTorch are those of scripts/setup.sh, which must
# have run.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

OLDEST=16
BUILD=build/clang
LOG=build/clang.log

# Sets `clang` to a compiler that is new enough.
find_clang() {
  local candidates=("${FSDP_CLANG:-}") version
  [ -n "${FSDP_CLANG:-}" ] || candidates=($(compgen -c clang++- | grep -E '^clang\+\+-[0-9]+$' | sort -ruV) clang++)
  for clang in "${candidates[@]}"; do
    version=$("$clang" -dumpversion 2>/dev/null) && [ "${version%%.*}" -ge "$OLDEST" ] && return
  done
  return 1
}

install_clang() {
  find_clang && return
  if [ -n "${FSDP_CLANG:-}" ] || ! command -v apt-get >/dev/null; then
    echo "clang: expected a clang++ of version $OLDEST or newer, got ${FSDP_CLANG:-none}; install one, or name it in FSDP_CLANG" >&2
    exit 2
  fi
  echo "== installing clang-$OLDEST"
  install_packages "clang-$OLDEST"
  find_clang
}

# Sets `result` to what is printed.
build_and_test() {
  result="does not build: $LOG"
  echo "== building with $clang"
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DFSDP_CUDA=OFF \
    -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >"$LOG" 2>&1 || return 1
  cmake --build "$BUILD" -- -k 0 >>"$LOG" 2>&1 || return 1
  echo "== testing"
  local status=0
  ctest --test-dir "$BUILD" -j 4 --no-tests=error --output-on-failure "$@" >>"$LOG" 2>&1 || status=$?
  result="$(grep -o '[0-9]*% tests passed.*' "$LOG" | tail -1): $LOG"
  return $status
}

main() {
  local which=(-L fast) failed=0
  [ $# -eq 0 ] || which=("$@")
  install_clang
  mkdir -p "$BUILD"
  build_and_test "${which[@]}" || failed=1
  echo "== $("$clang" --version | sed -n 1p): $result"
  exit $failed
}

main "$@"
