#!/usr/bin/env bash
# Runs a command in a memory control group of its own, v1 or v2, and says on stderr how much it was charged at most:
# anonymous memory, page cache, the kernel's own. Needs the right to make groups (root). Libraries that others have
# read already are charged to them.
#
#   benchmarks/support/under_memory_limit.sh 384 disk_offload --folder F --rows 1      at most 384 MiB, no swap
set -euo pipefail
limit_mib=$1
shift

if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/fsdp-limit-$$ limit=memory.max peak=memory.peak
  mkdir "$group"
  echo 0 >"$group/memory.swap.max" 2>/dev/null || true
  reclaims() { awk '$1 == "max" { print $2 }' "$group/memory.events"; }
else
  group=/sys/fs/cgroup/memory/fsdp-limit-$$ limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
  mkdir "$group"
  reclaims() { cat "$group/memory.failcnt"; }
fi
echo $((limit_mib << 20)) >"$group/$limit"

status=0
bash -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@" || status=$?
echo "exit code $status; charged at most $(($(cat "$group/$peak") >> 20)) MiB of $limit_mib, $(reclaims) times at the limit" >&2
rmdir "$group"
exit $status
