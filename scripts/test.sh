#!/usr/bin/env bash
# Sets the checkout up and runs all tests; arguments go to ctest, e.g. `scripts/test.sh -L fast`.
set -euo pipefail
cd "$(dirname "$0")/.."
FSDP_TARGETS=all scripts/setup.sh
ctest --test-dir build/release --output-on-failure --no-tests=error -j 2 "$@"
