#!/usr/bin/env bash
# Tries `fsdp train` under a Slurm of its own: two nodes on this machine, from nothing. Prints a line for each case; those of
# docs/clusters.md are its output.
#
#   scripts/try_slurm.sh [case...]     all, or those named: two_nodes two_steps asked_to_stop time_limit preempted drained
#                                      rank_killed power_cut cancelled launcher
#
#   FSDP_BUILD        a build tree that is ready [build/release]
#   FSDP_KEEP_FILES   if set: folders of the runs and Slurm's logs stay, and are named
#
# Needs root (namespaces of Linux) and Debian's slurmctld, slurmd, slurm-client and munge. Touches nothing of a Slurm that
# the machine may have. Takes about 4 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
source_folder=$PWD
STEPS=300
ON_TWO_NODES=(--nodes=2 --ntasks-per-node=2)
ALL_CASES="two_nodes two_steps asked_to_stop time_limit preempted drained rank_killed power_cut cancelled launcher"

fail() {
  printf 'try_slurm: %s\n' "$*" >&2
  exit 1
}

# Everything below runs in namespaces that end with it.
if [ -z "${FSDP_SLURM_INSIDE:-}" ]; then
  for program in slurmctld slurmd srun munged ip nsenter unshare; do
    command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
      fail "no $program. Install it: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2"
  done
  [ "$(id -u)" = 0 ] || fail "this makes networks and process tables of its own: run it as root."
  export FSDP_SLURM_INSIDE=1 PATH=$PATH:/usr/sbin:/sbin
  exec unshare --mount --pid --net --uts --fork --kill-child --mount-proc "$source_folder/scripts/try_slurm.sh" "$@"
fi

binaries=$(realpath "${FSDP_BUILD:-build/release}/bin")
export PATH=$binaries:$PATH OMP_NUM_THREADS=1
work=$(mktemp -d /tmp/fsdp-slurm-XXXXXX)
cluster=$work/cluster
mkdir "$cluster"
. scripts/slurm/cluster.sh
cd "$work"

clean_up() {
  if [ -n "${FSDP_KEEP_FILES:-}" ]; then
    echo "files: $work"
  else
    rm -rf "$work"
  fi
}
trap clean_up EXIT

show_job() {
  scontrol show job "$job" | tee "$work/job" >&2 || true
  tail -n 30 "$(sed -n 's/^ *StdOut=//p' "$work/job")" >&2 || true
}

# Waits for a condition; what is waited for is named if it does not come.
wait_until() {
  local what=$1 seconds=$2
  shift 2
  local until=$((SECONDS + seconds))
  until "$@"; do
    if [ $SECONDS -ge $until ]; then
      show_job
      fail "waited $seconds s for: $what"
    fi
    sleep 0.2
  done
}

nodes_are_idle() { [ "$(sinfo --noheader --nodes=n1,n2 --format=%T | sort -u)" = idle ]; }
state_of() { scontrol --oneliner show job "$1" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2; }
is_in_state() { [[ "$(state_of "$1")" =~ ^($2)$ ]]; }
count_of() { grep -c "\"event\":\"$2\"" "$1/events.jsonl" || true; }
has_started() { [ -s "$1/events.jsonl" ] && [ "$(count_of "$1" started)" -ge "$2" ]; }

# submit NAME [options of sbatch...] -- [options of fsdp train...]: starts it as a job, whose number is then $job.
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  job=$(sbatch --parsable --job-name="$name" --output="$work/$name.out" "${options[@]}" \
    "$source_folder/examples/slurm/train.sbatch" "$work/run.toml" --output.folder="$work/$name" "$@")
}

wait_for_end() { wait_until "the end of job $job" "${1:-120}" is_in_state "$job" "COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL"; }

expect_completed() {
  wait_for_end "${1:-120}"
  is_in_state "$job" COMPLETED || { show_job; fail "job $job: $(state_of "$job"), expected COMPLETED"; }
}

# Whether run $1, which was interrupted, took the very steps of the run that was not: bits of losses, norms and batches.
expect_same_bits() { cmp "$work/two_nodes/ledger.jsonl" "$work/$1/ledger.jsonl" || fail "$1: other losses than without the interruption"; }

event_step() { grep "\"event\":\"$2\"" "$work/$1/events.jsonl" | head -n 1 | grep -o '"step":[0-9]*' | cut -d: -f2; }
restarts() { scontrol --oneliner show job "$job" | grep -o 'Restarts=[0-9]*' | cut -d= -f2; }
report() { printf 'ok  %-14s %s\n' "$1" "$2"; }

make_run() {
  local i
  for i in $(seq 200); do echo "document $i says that $((i * i)) is the square of $i, and $((i * 7 % 13)) what is left"; done >text.txt
  fsdp prepare text.txt -o data --holdout 5% >prepare.log
  cat >run.toml <<TOML
[model]
hidden_size = 64
layers = 2
ffn_size = 128
[data]
path = "$work/data"
sequence_length = 64
[train]
steps = $STEPS
batch_sequences = 4
log_every = 50
peak_tflops = 1.0
[checkpoint]
every_steps = 20
TOML
}

# What the others are compared with.
case_two_nodes() {
  submit two_nodes "${ON_TWO_NODES[@]}" --
  expect_completed
  report two_nodes "$(grep -m 1 'rank(s) (srun)' two_nodes.out | sed 's/.*; \(4 rank\)/\1/')"
}

# Two steps of one job at once, each with a store of its own.
case_two_steps() {
  job=$(sbatch --parsable --output="$work/two_steps.out" --nodes=1 --ntasks=4 --wrap "
    srun --ntasks=2 --exact fsdp train $work/run.toml --train.steps=60 --output.folder=$work/two_steps_a &
    srun --ntasks=2 --exact fsdp train $work/run.toml --train.steps=60 --output.folder=$work/two_steps_b & wait")
  expect_completed
  cmp two_steps_a/ledger.jsonl two_steps_b/ledger.jsonl || fail "two_steps: the steps differ"
  report two_steps "two steps of a job at once, 2 ranks each: the same bits"
}

has_saved() { [ -s "$1/events.jsonl" ] && [ "$(count_of "$1" committed)" -gt 0 ]; }

# Does something to a run that has a checkpoint: name, command...
interrupt() {
  local name=$1
  shift
  wait_until "the first checkpoint of $name" 60 has_saved "$work/$name"
  "$@"
}

case_asked_to_stop() {
  submit asked_to_stop "${ON_TWO_NODES[@]}" --
  interrupt asked_to_stop scancel --signal=USR1 "$job"
  expect_completed
  expect_same_bits asked_to_stop
  report asked_to_stop "scancel --signal=USR1: saved at step $(event_step asked_to_stop stopped), exit 75, requeued ($(restarts) restart), done; same bits"
}

# Slurm counts limits in minutes, and looks twice a minute; a longer run.
case_time_limit() {
  submit time_limit "${ON_TWO_NODES[@]}" --time=1 --signal=USR1@20 -- --train.steps=1000000 --data.sequence_length=256
  wait_until "a second start" 150 has_started "$work/time_limit" 2
  scancel "$job"
  wait_for_end
  report time_limit "--time=1 --signal=USR1@20: Slurm asked; saved at step $(event_step time_limit stopped), requeued, went on from there"
}

case_preempted() {
  submit preempted "${ON_TWO_NODES[@]}" --
  interrupt preempted true
  srun --partition=urgent --nodes=2 --ntasks-per-node=4 --job-name=urgent sh -c 'echo urgent ran' >urgent.out 2>&1
  expect_completed
  expect_same_bits preempted
  report preempted "a job of a higher partition needs both nodes: saved at step $(event_step preempted stopped), made room, started again by Slurm, done; same bits"
}

# A job that is requeued keeps its number of tasks: with fewer nodes it waits until it is told to put them on less.
case_drained() {
  submit drained --nodes=2 --ntasks=4 --
  interrupt drained scontrol update NodeName=n2 State=DRAIN Reason=maintenance
  scancel --signal=USR1 "$job"
  wait_until "the job to stand in the queue again" 60 is_in_state "$job" PENDING
  scontrol update JobId="$job" NumNodes=1
  expect_completed
  scontrol update NodeName=n2 State=RESUME
  report drained "n2 drained, asked to stop at step $(event_step drained stopped), told to do with one node: went on there, its $(ranks_of_last_start drained) ranks $(grep -o 'ranks share memory' drained.out | tail -n 1 | sed 's/ranks share/sharing/')"
}

case_rank_killed() {
  submit rank_killed "${ON_TWO_NODES[@]}" --
  interrupt rank_killed kill_rank 3
  expect_completed
  expect_same_bits rank_killed
  report rank_killed "rank 3 killed with KILL: the others named it, requeued, went on from step $(event_step rank_killed resumed); same bits"
}

case_power_cut() {
  submit power_cut "${ON_TWO_NODES[@]}" --
  interrupt power_cut cut_power n2
  wait_until "the job to stand in the queue again" 120 is_in_state "$job" "PENDING|REQUEUED"
  start_node n2
  wait_until "two idle nodes" 60 nodes_are_idle
  expect_completed 180
  expect_same_bits power_cut
  report power_cut "n2 without power: requeued, n2 came back, went on from step $(event_step power_cut resumed); same bits"
}

case_cancelled() {
  submit cancelled "${ON_TWO_NODES[@]}" --
  interrupt cancelled scancel "$job"
  wait_for_end
  is_in_state "$job" CANCELLED || fail "cancelled: $(state_of "$job"), expected CANCELLED"
  wait_until "the saved step" 5 test "$(count_of "$work/cancelled" stopped)" = 1
  report cancelled "scancel: saved at step $(event_step cancelled stopped), not started again"
}

case_launcher() {
  job=$(sbatch --parsable --output="$work/launcher.out" --nodes=1 --ntasks=1 --cpus-per-task=2 --wrap "
    srun --cpus-per-task=2 fsdp launch --nproc 2 --grace 20 -- train $work/run.toml --resume=auto --output.folder=$work/launcher")
  interrupt launcher scancel --signal=TERM "$job"
  wait_for_end
  [ "$(count_of "$work/launcher" stopped)" = 1 ] || { show_job; fail "launcher: did not save"; }
  report launcher "fsdp launch under srun, TERM to all its processes: saved at step $(event_step launcher stopped)"
}

ranks_of_last_start() { grep '"event":"started"' "$work/$1/events.jsonl" | tail -n 1 | grep -o '"ranks":[0-9]*' | cut -d: -f2; }

# By the environment of the process, as /proc shows it.
kill_rank() {
  local folder
  for folder in /proc/[0-9]*; do
    if [ "$(cat "$folder/comm" 2>/dev/null)" = fsdp ] && tr '\0' '\n' <"$folder/environ" 2>/dev/null | grep -qx "SLURM_PROCID=$1"; then
      kill -KILL "${folder#/proc/}"
      return
    fi
  done
  fail "no rank $1"
}

main() {
  local name
  for name in ${*:-$ALL_CASES}; do
    [[ " $ALL_CASES " == *" $name "* ]] || fail "no case $name; there are: $ALL_CASES"
  done
  start_cluster
  make_run
  wait_until "two idle nodes" 60 nodes_are_idle
  [[ " ${*:-two_nodes} " == *" two_nodes "* ]] || case_two_nodes
  for name in ${*:-$ALL_CASES}; do "case_$name"; done
}

main "$@"
