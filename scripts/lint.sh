#!/usr/bin/env bash
# All checks of form: layers, text, formatting; with --tidy also clang-tidy (needs a configured build/release).
# Usage: scripts/lint.sh [--fix] [--tidy]     --fix formats the files instead of complaining
set -uo pipefail
cd "$(dirname "$0")/.."

fix=0
tidy=0
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    *)
      echo "usage: scripts/lint.sh [--fix] [--tidy]" >&2
      exit 2
      ;;
  esac
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
  database=build/release/compile_commands.json
  if [[ ! -f $database ]]; then
    echo "lint: no $database: run cmake --preset release first" >&2
    exit 1
  fi
  clang_tidy=${CLANG_TIDY:-clang-tidy}
  # Only what the build compiles; headers are checked through the sources that include them.
  mapfile -t compiled < <(python3 -c '
import json, os, sys
root = os.getcwd() + os.sep
folders = tuple(root + f + os.sep for f in ("fsdp", "io", "text", "kernels", "models", "plan", "train", "app"))
for file in sorted({os.path.normpath(os.path.join(e["directory"], e["file"])) for e in json.load(open(sys.argv[1]))}):
    if file.startswith(folders) and file.endswith(".cpp"):
        print(file)' "$database")
  # Flags that only g++ knows (the precompiled header among them) are dropped by clang-tidy with a warning.
  run xargs -P "$(nproc)" -n 1 "$clang_tidy" --quiet -p "$(dirname "$database")" \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument < <(printf '%s\n' "${compiled[@]}")
fi

exit "$failed"
