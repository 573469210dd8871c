#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/call_ledger.h"
#include "plan/group.h"
#include "plan/setup.h"

namespace fsdp::plan {

// The network above the nodes: `rails` links of each node carry what its ranks receive; pods of nodes hang under an
// upper level that is `slimming` times thinner (a slimmed fat tree), 1 where it is not.
struct Network {
  int64_t rails = 8;
  int64_t pod_nodes = 0;  // 0: all nodes are in one pod
  double slimming = 1;
};

// One kind of call in a step of one rank. What crosses a border is the least that must: each byte enters each node, and
// each pod, once, whichever of its ranks takes it; the ranks there share it evenly.
struct TrafficLine {
  Collective call;
  int64_t inside_node = 0;    // bytes received per rank from ranks of the same node
  int64_t between_nodes = 0;  // from other nodes, other pods included
  int64_t between_pods = 0;
};

struct TrafficPlan {
  std::vector<TrafficLine> lines;
  int64_t received_bytes = 0;  // of a rank in a step, all calls together
  int64_t inside_node = 0;
  int64_t between_nodes = 0;
  int64_t between_pods = 0;
  int64_t per_rail = 0;        // bytes that one rail of a node receives
  double pod_load = 0;         // between_pods * slimming: what it costs in bytes of a full link
  int64_t alignment = 0;       // the largest power of two, up to 256, that divides every rank's part of every call
  double padding_percent = 0;  // of all parameters
  std::vector<std::string> warnings;
};

// Throws io::Error(kUsage) for rails, pods or a slimming that make no sense.
TrafficPlan plan_traffic(const std::vector<std::vector<GroupPlan>>& units, const CallLedger& calls, const Setup& setup,
                         const Network& network);

// "gather weights over shard": what a line is.
std::string describe(const Collective& call);

}  // namespace fsdp::plan
