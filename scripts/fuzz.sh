#!/usr/bin/env bash
# Builds the fuzz targets with clang, libFuzzer and sanitizers, runs them, and prints a table (docs/fuzzing.md).
#
#   scripts/fuzz.sh                          all targets, 60 s each, two at a time
#   scripts/fuzz.sh --seconds 600 json toml  these targets, longer
#   scripts/fuzz.sh --jobs 1                 one at a time
#   scripts/fuzz.sh --replay                 only the corpora of the tree
#   scripts/fuzz.sh --differential           the safetensors reader against the Python package
#
# Exits with 1 if there is a finding; the inputs are in build/fuzz/findings. FSDP_CLANG names the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

BUILD=build/fuzz
CLANG=${FSDP_CLANG:-clang++}
PACKAGES="clang libclang-rt-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev
  libzstd-dev libsimdjson-dev"
# What reading may cost is checked by tests/fuzz/cost_gate.h; these are for what never gets there.
LIMITS="-timeout=60 -malloc_limit_mb=65 -rss_limit_mb=1024 -max_len=16384"
export ASAN_OPTIONS=quarantine_size_mb=16:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1

seconds=60
jobs=2
mode=fuzz
targets=()

parse_arguments() {
  while (($#)); do
    case "$1" in
      --seconds) seconds=$2; shift 2 ;;
      --jobs) jobs=$2; shift 2 ;;
      --replay) mode=replay; shift ;;
      --differential) mode=differential; shift ;;
      -*) echo "usage: scripts/fuzz.sh [--seconds N] [--jobs N] [--replay | --differential] [target...]" >&2; exit 2 ;;
      *) targets+=("$1"); shift ;;
    esac
  done
  ((${#targets[@]})) || mapfile -t targets < <(sed -n '/^set(FUZZ_TARGETS/,/)/{s/^  \([a-z_]*\))*$/\1/p}' tests/fuzz/targets.cmake)
}

# Can `CLANG` link a libFuzzer program?
has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$CLANG" -x c++ -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null
}

install_clang() {
  has_fuzzer && return
  if ! command -v apt-get >/dev/null; then
    echo "fuzz: $CLANG cannot build with -fsanitize=fuzzer; install clang with its runtime libraries" >&2
    exit 2
  fi
  echo "== installing $PACKAGES"
  # shellcheck disable=SC2086
  install_packages $PACKAGES
}

build() {
  install_clang
  cmake -S tests/fuzz -B "$BUILD" -G Ninja -DCMAKE_CXX_COMPILER="$CLANG" >"$BUILD-configure.log" 2>&1 || {
    cat "$BUILD-configure.log" >&2
    exit 1
  }
  cmake --build "$BUILD" -j "$jobs" --target "$@"
}

# One target: the corpus of the tree is read, the one in the build folder grows.
run_target() {
  local name=$1
  local grown=$BUILD/corpus/$name
  local dictionary=tests/fuzz/dictionaries/$name.dict
  local options=()
  mkdir -p "$grown"
  [ -f "$dictionary" ] && options+=("-dict=$dictionary")
  # shellcheck disable=SC2086
  "$BUILD/fuzz_$name" $LIMITS "${options[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$BUILD/findings/$name-" "$grown" "tests/fuzz/corpus/$name" >"$BUILD/log/$name.log" 2>&1 &&
    echo 0 >"$BUILD/log/$name.code" || echo $? >"$BUILD/log/$name.code"
}

run_targets() {
  local name
  for name in "${targets[@]}"; do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    run_target "$name" &
  done
  wait
}

# A row per target; 1 if any has a finding. Exit code 72 is libFuzzer's word for an interrupted run.
print_table() {
  local name failed=0
  printf '| %-18s | %12s | %8s | %6s | %7s | %8s |\n' target executions exec/s edges corpus findings
  printf '|%s|%s|%s|%s|%s|%s|\n' -------------------- -------------- ---------- -------- --------- ----------
  for name in "${targets[@]}"; do
    local log=$BUILD/log/$name.log code findings=0
    code=$(cat "$BUILD/log/$name.code")
    if ((code != 0 && code != 72)); then
      findings=1
      failed=1
    fi
    awk -v name="$name" -v findings="$findings" '
      /stat::number_of_executed_units:/ { executions = $2 }
      /stat::average_exec_per_sec:/ { rate = $2 }
      / cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") edges = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
      END { sub("/.*", "", corpus)
            printf "| %-18s | %12s | %8s | %6s | %7s | %8s |\n", name, executions, rate, edges, corpus, findings }' "$log"
  done
  for name in "${targets[@]}"; do
    grep -hE 'broken promise|ERROR: |runtime error|Test unit written' "$BUILD/log/$name.log" | sed "s/^/$name: /" || true
  done
  return $failed
}

replay() {
  local name failed=0
  for name in "${targets[@]}"; do
    # shellcheck disable=SC2086
    if "$BUILD/fuzz_$name" $LIMITS tests/fuzz/corpus/"$name"/* >"$BUILD/log/$name.log" 2>&1; then
      echo "fuzz: $name: $(find "tests/fuzz/corpus/$name" -type f | wc -l) files replayed"
    else
      echo "fuzz: $name: failed, see $BUILD/log/$name.log" >&2
      failed=1
    fi
  done
  return $failed
}

main() {
  parse_arguments "$@"
  mkdir -p "$BUILD/log" "$BUILD/findings"
  if [ -d /dev/shm ]; then
    TMPDIR=$(mktemp -d /dev/shm/fsdp-fuzz-XXXXXX)
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
  fi
  case "$mode" in
    differential)
      build safetensors_probe
      python3 tests/fuzz/differential_safetensors.py --probe "$BUILD/safetensors_probe"
      ;;
    replay)
      build "${targets[@]/#/fuzz_}"
      replay
      ;;
    fuzz)
      build "${targets[@]/#/fuzz_}"
      run_targets
      print_table
      ;;
  esac
}

main "$@"
