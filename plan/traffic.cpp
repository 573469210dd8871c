#include "plan/traffic.h"

#include <algorithm>
#include <numeric>

#include "fsdp/base/units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

void check(const Network& network) {
  const auto refuse = [](const std::string& what, const std::string& got, const std::string& expected) {
    throw io::Error(io::ErrorKind::kUsage, "[plan] " + what + ": got " + got + ", expected " + expected + ".");
  };
  if (network.rails < 1) refuse("rails of a node", std::to_string(network.rails), "at least 1");
  if (network.pod_nodes < 0)
    refuse("nodes of a pod", std::to_string(network.pod_nodes), "at least 1, or 0 for one pod");
  if (!(network.slimming >= 1)) refuse("slimming", std::to_string(network.slimming), "at least 1");
}

// Of what a rank of the group received, the part that came into its island (node or pod) from others: an island with p
// of the group's n ranks takes (n - p) / n of a buffer in, in p equal parts, while each rank receives (n - 1) / n of
// it.
int64_t from_outside(int64_t received, const RankGroup& group, int64_t islands) {
  return group.size > 1 ? received / (group.size - 1) * (islands - 1) : 0;
}

int64_t stride_of(const Collective& call, const Setup& setup) {
  switch (call.axis) {
    case CollectiveAxis::kTensor:
      return setup.experts;
    case CollectiveAxis::kExperts:
      return 1;
    case CollectiveAxis::kStages:
      return setup.stage_ranks();
    case CollectiveAxis::kReplicate:
      return setup.shards * setup.tensor;
    case CollectiveAxis::kShard:
    case CollectiveAxis::kForwardGroup:
    case CollectiveAxis::kContext:
      break;
  }
  if (call.of_experts) return setup.experts;
  return setup.tensor * (call.axis == CollectiveAxis::kContext ? setup.experts : 1);
}

// What comes from outside of an exchange or of another stage comes whole.
TrafficLine split_messages(const Collective& call, const Setup& setup, const Network& network) {
  TrafficLine line{call, 0, 0, 0};
  const int64_t others = call.group.size - 1;
  const auto from_others = [&](int64_t in_island) {
    return call.received_bytes / others * std::max<int64_t>(0, call.group.size - in_island);
  };
  line.between_nodes = from_others(call.group.per_node);
  line.inside_node = call.received_bytes - line.between_nodes;
  if (network.pod_nodes > 0)
    line.between_pods =
        from_others(rank_group(call.group.size, stride_of(call, setup), setup.node_size * network.pod_nodes).per_node);
  return line;
}

// What a ring brings into an island comes to one of its ranks; shared evenly.
TrafficLine split_ring(const Collective& call, const Setup& setup, const Network& network) {
  TrafficLine line{call, 0, 0, 0};
  const auto entering = [&](const RankGroup& group) {
    return group.nodes > 1 ? call.received_bytes / group.per_node : 0;
  };
  line.between_nodes = entering(call.group);
  line.inside_node = call.received_bytes - line.between_nodes;
  if (network.pod_nodes > 0)
    line.between_pods =
        entering(rank_group(call.group.size, stride_of(call, setup), setup.node_size * network.pod_nodes));
  return line;
}

TrafficLine split(const Collective& call, const Setup& setup, const Network& network) {
  if (call.kind == CollectiveKind::kMessage && call.axis == CollectiveAxis::kContext)
    return split_ring(call, setup, network);
  if (call.kind == CollectiveKind::kExchange || call.kind == CollectiveKind::kMessage)
    return split_messages(call, setup, network);
  TrafficLine line{call, 0, 0, 0};
  line.between_nodes = from_outside(call.received_bytes, call.group, call.group.nodes);
  line.inside_node = call.received_bytes - line.between_nodes;
  if (network.pod_nodes > 0) {
    const RankGroup in_pods = rank_group(call.group.size, stride_of(call, setup), setup.node_size * network.pod_nodes);
    line.between_pods = from_outside(call.received_bytes, call.group, in_pods.nodes);
  }
  return line;
}

std::string straddling_text(const Setup& setup, int64_t island, const std::string& what) {
  const int64_t ranks = setup.shards * setup.tensor;
  return "shard groups of " + std::to_string(ranks) + " ranks and " + what + " of " + std::to_string(island) +
         " do not divide each other: some groups lie across a border that others do not. Take a divisor or a multiple "
         "of " +
         std::to_string(island) + " as the size of the shard axis.";
}

bool straddles(int64_t shards, int64_t island) { return island % shards != 0 && shards % island != 0; }

void add_warnings(TrafficPlan& plan, const Setup& setup, const Network& network) {
  const bool several_nodes = setup.stage_ranks() > setup.node_size;
  const int64_t group = setup.shards * setup.tensor;
  if (several_nodes && straddles(group, setup.node_size))
    plan.warnings.push_back(straddling_text(setup, setup.node_size, "nodes"));
  const int64_t pod = network.pod_nodes * setup.node_size;
  if (pod > 0 && setup.stage_ranks() > pod && straddles(group, pod))
    plan.warnings.push_back(straddling_text(setup, pod, "pods"));
  if (plan.padding_percent > 1) {
    plan.warnings.push_back(
        "granules cost " + std::to_string(plan.padding_percent) +
        " % of padding, which travels and rests like weights. Take smaller granules or fewer shards.");
  }
  // After: Zhao et al. 2023, figure 2b: the bandwidth of a gather falls where it has less than 33M fp32 elements.
  constexpr int64_t kKneeBytes = int64_t{33'000'000} * 4;
  for (const TrafficLine& line : plan.lines) {
    const int64_t largest = line.call.largest_shard * line.call.group.size;
    if (line.call.load == CollectiveLoad::kActivations) {
      if (line.call.axis == CollectiveAxis::kTensor && line.call.group.nodes > 1)
        plan.warnings.push_back(describe(line.call) + ": leaves the node, " + format_bytes(largest) +
                                " a call, and every layer waits for it. Take a tp of at most " +
                                std::to_string(setup.node_size) + ".");
      continue;
    }
    if (line.call.group.nodes == 1 || largest >= kKneeBytes) continue;
    plan.warnings.push_back(
        describe(line.call) + ": the largest buffer has " + format_bytes(largest) + " (" +
        format_bytes(line.call.largest_shard) +
        " per rank), too little for full bandwidth between "
        "nodes (below 33M fp32 elements, FSDP paper, figure 2b). Shard larger units or fewer ranks.");
  }
}

// Of the parts that ranks contribute.
int64_t alignment_of(const std::vector<TrafficLine>& lines) {
  int64_t common = 256;
  for (const TrafficLine& line : lines) {
    for (const int64_t bytes : {line.call.smallest_shard, line.call.largest_shard}) common = std::gcd(common, bytes);
  }
  return common;
}

double padding_percent_of(const std::vector<std::vector<GroupPlan>>& units) {
  int64_t padding = 0, numel = 0;
  for (const auto& groups : units) {
    for (const GroupPlan& group : groups) {
      padding += group.layout->padding();
      numel += group.numel;
    }
  }
  return numel > 0 ? 100.0 * static_cast<double>(padding) / static_cast<double>(numel) : 0;
}

}  // namespace

TrafficPlan plan_traffic(const std::vector<std::vector<GroupPlan>>& units, const CallLedger& calls, const Setup& setup,
                         const Network& network) {
  check(network);
  TrafficPlan plan;
  for (const Collective& call : calls.collectives) {
    const TrafficLine& line = plan.lines.emplace_back(split(call, setup, network));
    plan.received_bytes += call.received_bytes;
    plan.inside_node += line.inside_node;
    plan.between_nodes += line.between_nodes;
    plan.between_pods += line.between_pods;
  }
  plan.per_rail = plan.between_nodes * std::min(setup.node_size, setup.world()) / network.rails;
  plan.pod_load = static_cast<double>(plan.between_pods) * network.slimming;
  plan.alignment = alignment_of(plan.lines);
  plan.padding_percent = padding_percent_of(units);
  add_warnings(plan, setup, network);
  return plan;
}

std::string describe(const Collective& call) {
  const char* kind = call.kind == CollectiveKind::kGather          ? "gather"
                     : call.kind == CollectiveKind::kReduceScatter ? "reduce-scatter"
                     : call.kind == CollectiveKind::kExchange      ? "exchange"
                     : call.kind == CollectiveKind::kMessage       ? "receive"
                                                                   : "all-reduce";
  const char* load = call.load == CollectiveLoad::kWeights     ? " weights"
                     : call.load == CollectiveLoad::kGradients ? " gradients"
                                                               : " activations";
  const char* axis = call.axis == CollectiveAxis::kReplicate      ? " over replicas"
                     : call.axis == CollectiveAxis::kForwardGroup ? " over the forward group"
                     : call.axis == CollectiveAxis::kTensor       ? " over tp"
                     : call.axis == CollectiveAxis::kContext      ? " over cp"
                     : call.axis == CollectiveAxis::kExperts      ? " over ep, if balanced"
                     : call.axis == CollectiveAxis::kStages       ? " of other stages"
                                                                  : " over shards";
  return std::string(kind) + load + (call.of_experts ? " of experts" : "") + axis;
}

}  // namespace fsdp::plan
