#!/usr/bin/env bash
# Sets the checkout up and runs all tests; arguments go to ctest, e.g. `scripts/test.sh -L fast`. FSDP_SETUP holds options
# of scripts/setup.sh, as in FSDP_SETUP=--parquet.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2086
FSDP_TARGETS=all scripts/setup.sh ${FSDP_SETUP:-}
ctest --test-dir build/release --output-on-failure --no-tests=error -j 2 "$@"
