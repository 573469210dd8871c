#!/usr/bin/env bash
# All checks of form: layers, text, formatting; with --tidy also clang-tidy.
#
#   scripts/lint.sh [--fix]          --fix formats the files instead of complaining
#   scripts/lint.sh --tidy           and every source by clang-tidy, which takes long
#   scripts/lint.sh --tidy '/io/'    and those whose path matches, with what is compiled together with them
set -uo pipefail
cd "$(dirname "$0")/.."

fix=0
tidy=0
tidied=.  # a pattern
while (($#)); do
  case "$1" in
    --fix) fix=1 ;;
    --tidy)
      tidy=1
      if [[ -n ${2:-} && $2 != --* ]]; then
        tidied=$2
        shift
      fi
      ;;
    *)
      echo "usage: scripts/lint.sh [--fix] [--tidy [PATTERN]] (got '$1')" >&2
      exit 2
      ;;
  esac
  shift
done

failed=0
run() { "$@" || failed=1; }

folders=()
for folder in fsdp io text kernels models plan report train app tests benchmarks examples; do
  [[ -d $folder ]] && folders+=("$folder")
done
mapfile -d '' sources < <(find "${folders[@]}" -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)

run python3 scripts/check_layers.py
run python3 scripts/check_text.py

clang_format=${CLANG_FORMAT:-clang-format}
if ! command -v "$clang_format" >/dev/null; then
  echo "lint: $clang_format is not installed (set CLANG_FORMAT); formatting is not checked" >&2
  failed=1
elif ((fix)); then
  run "$clang_format" -i "${sources[@]}"
else
  run "$clang_format" --dry-run -Werror "${sources[@]}"
fi

if ((tidy)); then
  clang_tidy=${CLANG_TIDY:-clang-tidy}
  version=$("$clang_tidy" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
  if ! command -v "clang++-$version" >/dev/null; then
    echo "lint: got $clang_tidy of version ${version:-none}, expected it and the clang++-N of that version (set CLANG_TIDY)" >&2
    exit 1
  fi
  # A build of that clang, for its precompiled headers. Sources are checked as they are compiled, many together, which
  # takes a twentieth of the time; headers through them.
  cmake -S . -B build/tidy -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="clang++-$version" -DFSDP_UNITY=ON \
    -DFSDP_CUDA=OFF >/dev/null &&
    cmake --build build/tidy --target kernels/CMakeFiles/fsdp_kernels.dir/cmake_pch.hxx.pch fsdp_whole_pch >/dev/null || exit 1
  mapfile -t compiled < <(python3 -c '
import json, os, re, sys
root = os.getcwd() + os.sep
for file in sorted({os.path.normpath(os.path.join(e["directory"], e["file"])) for e in json.load(open("build/tidy/compile_commands.json"))}):
    sources = re.findall("#include \"(.*)\"", open(file).read()) if "/Unity/" in file else [file]
    if file.startswith(root) and any(re.search(sys.argv[1], s) and not s.startswith(root + "build/") for s in sources):
        print(file)' "$tidied")
  if ((${#compiled[@]} == 0)); then
    echo "lint: got --tidy '$tidied', expected a pattern that the path of a source matches" >&2
    exit 2
  fi
  # Tests multiply numbers that they made small themselves, and copy where that is plainer.
  checks=-bugprone-suspicious-include
  checks_of_tests=$checks,-performance-*,-bugprone-implicit-widening-of-multiplication-result
  checks_of_tests+=,-bugprone-misplaced-widening-cast,-bugprone-narrowing-conversions,-bugprone-integer-division
  run xargs -P "$(nproc)" -n 2 "$clang_tidy" --quiet -p build/tidy < <(
    for file in "${compiled[@]}"; do
      if [[ ${file#"$PWD"} == */tests/* ]]; then echo "--checks=$checks_of_tests $file"; else echo "--checks=$checks $file"; fi
    done)
fi

exit "$failed"
