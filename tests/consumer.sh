#!/usr/bin/env bash
# Installs the package of build tree $1, builds the program in folder $2 against it with find_package, runs it on 2 ranks.
set -euo pipefail
build=$1
example=$2
work=$build/consumer
rm -rf "$work/prefix"
cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake -S "$example" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build"
"$work/prefix/bin/fsdp" launch --nproc 2 -- "$work/build/minimal" | tee "$work/output"
grep -q 'layers.2' "$work/output"
awk '/step  20/ { first = $NF } /step 100/ { last = $NF } END { exit !(first > 0 && last < first) }' "$work/output"
