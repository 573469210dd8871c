#!/usr/bin/env bash
# Disturbs real training runs in every way of docs/reliability.md, continues them, and prints a table of what came of it.
#
#   scripts/faults.sh                     a sample that takes 5 minutes; the seed is printed
#   scripts/faults.sh --all               everything, about an hour
#   scripts/faults.sh --seed 7 --minutes 2
#   scripts/faults.sh --only kills        one part (kills signals stops disk corruption restart locks clock mismatch elastic
#                                         nonfinite memory optimizers)
#   scripts/faults.sh --seed 7 --case 'kills/chain:3'
#   scripts/faults.sh --all --write-docs --json faults.json
#
# Exits with 1 if a promise was broken. Optional programs, without which cases are left out and named: fiu-run (random
# failures of system calls; Debian: fiu-utils) and libfaketime (clocks that jump; Debian: faketime); --install gets them.
# A small disk is mounted where this user may do so.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --install ]; then
  source scripts/packages.sh
  install_packages fiu-utils faketime
  shift
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/promise/faults/battery.py "$@"
