# A Slurm cluster of two nodes on this machine, for scripts/try_slurm.sh, which sources it inside namespaces of its own:
# a controller "ctl", and nodes "n1" and "n2" with host names, networks and process tables of their own, so that the ranks
# of one node share memory and those of two talk over TCP. Whatever runs in it ends with those namespaces.
#
# Expects $cluster, an empty folder.

readonly nodes="n1 n2"
declare -A guardian # node -> process that its slurmd and all tasks end with

write_slurm_configuration() {
  cat >"$cluster/slurm.conf" <<CONF
ClusterName=try
SlurmctldHost=ctl(10.77.0.100)
SlurmUser=root
AuthType=auth/munge
# The second is how long a job waits before it starts again; Slurm's default is 2 minutes.
AuthInfo=socket=$cluster/munge.socket,cred_expire=5
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool-%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd-%n.pid
SlurmctldLogFile=$cluster/slurmctld.log
SlurmdLogFile=$cluster/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=10
KillWait=15
InactiveLimit=0
NodeName=n1 NodeAddr=10.77.0.1 CPUs=4 State=UNKNOWN
NodeName=n2 NodeAddr=10.77.0.2 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
CONF
  export SLURM_CONF=$cluster/slurm.conf
  echo "CgroupPlugin=cgroup/v1" >"$cluster/cgroup.conf" # of which nothing is used; looking for the right one may fail
}

make_network() {
  ip link set lo up
  hostname ctl
  printf '%s\n' "127.0.0.1 localhost" "10.77.0.100 ctl" "10.77.0.1 n1" "10.77.0.2 n2" >"$cluster/hosts"
  mount --bind "$cluster/hosts" /etc/hosts
  mkdir -p /run/netns
  mount -t tmpfs none /run/netns
  ip link add bridge type bridge
  ip address add 10.77.0.100/24 dev bridge
  ip link set bridge up
  local node
  for node in $nodes; do
    ip netns add "$node"
    ip link add "$node" type veth peer name eth0 netns "$node"
    ip link set "$node" master bridge up
    ip -n "$node" link set lo up
    ip -n "$node" address add "10.77.0.${node#n}/24" dev eth0
    ip -n "$node" link set eth0 up
  done
}

start_munge() {
  dd if=/dev/urandom of="$cluster/munge.key" bs=128 count=1 status=none
  chmod 400 "$cluster/munge.key"
  munged --force --key-file="$cluster/munge.key" --socket="$cluster/munge.socket" --pid-file="$cluster/munged.pid" \
    --log-file="$cluster/munged.log" --seed-file="$cluster/munged.seed" 2>"$cluster/munged.errors"
}

start_node() {
  nsenter --net="/run/netns/$1" unshare --uts --pid --fork --kill-child --mount-proc \
    bash -c "hostname $1 && exec slurmd -D -f $cluster/slurm.conf" >"$cluster/$1.output" 2>&1 &
  guardian[$1]=$!
}

# As a power cut: nothing on it says goodbye.
cut_power() {
  kill -KILL "${guardian[$1]}"
  wait "${guardian[$1]}" 2>/dev/null || true
}

start_cluster() {
  mkdir -p "$cluster/state"
  write_slurm_configuration
  make_network
  start_munge
  slurmctld -D -f "$cluster/slurm.conf" >"$cluster/slurmctld.output" 2>&1 &
  local node
  for node in $nodes; do start_node "$node"; done
}
