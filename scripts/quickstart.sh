#!/usr/bin/env bash
# From a fresh machine to a trained model: installs and builds, turns the C++ standard library headers of the compiler into
# a data set, trains a small SmolLM3-style model on 2 ranks for at most 5.2 minutes, and lets it write some code.
#
#   scripts/quickstart.sh [--train.key=value ...]     further arguments go to `fsdp train`
#
# Writes to runs/quickstart; run it again to start over.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh

# The first folder c++/NN that the compiler searches.
compiler="${CXX:-c++}"
headers=$(echo | "$compiler" -E -v -x c++ - 2>&1 >/dev/null | sed -n 's/^ \(.*\/c++\/[0-9.]*\)$/\1/p' | sed -n 1p)
if [ ! -d "$headers" ]; then
  echo "quickstart: $compiler names no folder c++/NN with standard library headers. Set CXX to a compiler that has one." >&2
  exit 3
fi

run=runs/quickstart
mkdir -p "$run"
echo "== prepare: $headers"
bin/fsdp prepare "$headers/**/*" --output "$run/data" --holdout 5% --overwrite
echo "== train"
bin/fsdp launch --nproc 2 -- train configs/quickstart.toml "$@"
echo "== generate"
bin/fsdp generate "$run/train/model" --prompt $'  template<typename _Tp>\n    ' --max-tokens 400 --temperature 0.7 --top-k 40
cat <<END

== where things are
  data set        $run/data
  model           $run/train/model           (Hugging Face layout)
  metrics         $run/train/metrics.jsonl
  configuration   $run/train/config.toml     (repeats this run: bin/fsdp launch --nproc 2 -- train $run/train/config.toml)
  more text       bin/fsdp generate $run/train/model --prompt '...'
END
