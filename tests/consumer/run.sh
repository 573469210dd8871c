#!/usr/bin/env bash
# Installs the package of build tree $1, builds the programs of folder $2 against it with find_package and runs each on 2
# ranks. They fail by themselves if they do not learn.
set -euo pipefail
build=$1
examples=$2
work=$build/consumer
rm -rf "$work/prefix"
cmake --install "$build" --prefix "$work/prefix" >/dev/null
# -O1 finds the warnings that need an optimizer; more takes a third longer and proves nothing more.
cmake -S "$(dirname "$0")" -B "$work/programs" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DEXAMPLES="$examples" >/dev/null
cmake --build "$work/programs" -j 2
mkdir -p "$work/run"
cd "$work/run"
"$work/programs/options/options"
"$work/programs/plan/plan"
for example in minimal cnn gan torchscript functional; do
  echo "== $example"
  "$work/prefix/bin/fsdp" launch --nproc 2 -- "$work/programs/$example/$example" | tee "$work/output-$example"
done
awk '/step  20/ { first = $NF } /step 100/ { last = $NF } END { exit !(first > 0 && last < first) }' "$work/output-minimal"
