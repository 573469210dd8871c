#include "plan/group.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "plan/rank_part.h"

namespace fsdp::plan {
namespace {

int64_t size_of(io::DType dtype) { return static_cast<int64_t>(io::item_size(dtype)); }

// Element types of one group, resolved.
struct Types {
  io::DType main, param, reduce, accumulate;
  Travel travel;

  bool as_fp8() const { return travel == Travel::kAsFp8; }
};

Types types_of(const PlannedParameter& parameter, const PlannedPrecision& precision) {
  const io::DType main = parameter.dtype;
  const io::DType param = parameter.compute == ComputeType::kOwn ? main : precision.param.value_or(main);
  return {main, param, precision.reduce.value_or(main), precision.accumulate.value_or(main), parameter.travel};
}

// As plan_balanced() of fsdp/unit/fully_shard.cpp.
std::vector<int64_t> deal(std::span<const PlannedParameter> members, layout::OwnerLoads& loads) {
  std::vector<layout::OwnedTensor> tensors;
  for (const PlannedParameter& member : members) {
    tensors.push_back({member.numel(), member.trains ? layout::orthogonalization_work(member.shape) : 0});
  }
  return loads.deal(tensors);
}

layout::FlatLayout make_layout(std::span<const PlannedParameter> members, const Setup& setup, const Types& types,
                               int64_t ranks) {
  const int64_t smallest = std::min({size_of(types.main), size_of(types.param), size_of(types.reduce)});
  const int64_t align = layout::kAlignBytes / (types.as_fp8() ? 1 : smallest);
  if (setup.owners == layout::Owners::kBalanced) {
    layout::OwnerLoads loads(ranks);  // of which shards' sizes do not depend on what was dealt before
    std::vector<int64_t> numels;
    for (const PlannedParameter& member : members) numels.push_back(member.numel());
    return layout::plan_owned(numels, deal(members, loads), ranks, align).layout;
  }
  std::vector<layout::TensorSpec> tensors;
  for (const PlannedParameter& member : members) {
    int64_t granule = layout::granule_of(setup.granularity, member.shape, setup.block);
    if (setup.sum_order == SumOrder::kTree) granule = std::lcm(granule, kTreeBlock);
    if (member.run > 1) granule = std::lcm(granule, member.run);
    tensors.push_back({member.numel(), granule});
  }
  return layout::plan(tensors, ranks, align);
}

// Numbers that `n` ranks of a group need as scratch to reduce-scatter shards of so many: Transport::staging_numel().
int64_t staging_numel(Transport transport, const RankGroup& group, int64_t shard_numel) {
  switch (transport) {
    case Transport::kGloo:
      return (group.size - 1) * shard_numel;
    case Transport::kTwoLevel:  // in two levels where each node has as many ranks
      return ((group.size % group.per_node == 0 ? group.nodes : group.size) - 1) * shard_numel;
    case Transport::kNccl:
    case Transport::kSharedMemory:
      return 0;
  }
  return 0;
}

bool keeps_one_copy(const Setup& setup, const RankGroups& groups) {
  const bool shares = setup.transport == Transport::kSharedMemory ||
                      (setup.transport == Transport::kTwoLevel && groups.shard.nodes == 1);
  return shares && setup.copies == GatheredCopies::kOnePerHost && groups.shard.size > 1 &&
         traits(setup.strategy).reduce != ReduceKind::kAllReduce;
}

bool is_elsewhere(const Setup& setup) { return setup.state != StatePlace::kMemory; }

// As ParameterGroup::make_buffers().
void plan_weights(GroupPlan& group, const Setup& setup, const RankGroups& groups, const Types& types) {
  const StrategyTraits strategy = traits(setup.strategy);
  const bool over_replicas = strategy.shards_over_replicas && groups.has_replicas();
  const int64_t total = group.layout->total_numel(), shard = group.layout->shard_numel;
  const int64_t parts = over_replicas ? groups.replicate.size : 1;
  const int64_t main_numel = strategy.shards_main_weight ? shard / parts : total;
  const bool whole = !strategy.shards_main_weight || groups.shard.size * parts == 1;
  const bool copies_whole =
      (setup.whole_shard == WholeShard::kCopied || is_elsewhere(setup)) && strategy.shards_main_weight && whole;
  const bool is_beside_device = is_elsewhere(setup) && setup.transport == Transport::kNccl;
  const bool same_dtype = types.param == types.main && !is_beside_device;
  group.copies_whole = copies_whole;
  group.residence = choose_residence(
      strategy, {whole && !copies_whole, types.param == types.main && !is_elsewhere(setup),
                 keeps_one_copy(setup, groups) && !over_replicas && !copies_whole && !is_elsewhere(setup)});
  group.main_weight = main_numel * size_of(types.main);
  group.padding =
      group.layout->padding() / (strategy.shards_main_weight ? groups.shard.size * parts : 1) * size_of(types.main);
  group.unsharded = total * size_of(types.param);
  const bool has_copy = !same_dtype || over_replicas;
  switch (group.residence) {
    case Residence::kAliased:
      break;
    case Residence::kPersistent:
      group.model_weight = group.unsharded;
      break;
    case Residence::kShared:
      group.model_weight = same_dtype ? 0 : group.unsharded / groups.shard.size;
      break;
    case Residence::kReleased:
      group.model_weight = has_copy ? shard * size_of(types.param) : 0;
      break;
  }
  const bool gathers = group.residence == Residence::kReleased || (group.residence == Residence::kPersistent && !whole);
  const int64_t travelling_size = types.as_fp8() ? 1 : size_of(types.param);
  group.gather_shard = gathers ? shard * travelling_size : 0;
  group.replica_gather_shard = gathers && over_replicas ? main_numel * travelling_size : 0;
  if (gathers && types.as_fp8()) {
    group.arriving = total;
    group.model_weight = (group.residence == Residence::kPersistent ? group.unsharded : 0) + shard;
  }
  if (groups.has_forward_group() && group.residence == Residence::kReleased)
    group.forward_shard = group.unsharded / groups.forward.size;
}

// As GradientBuffers.
void plan_gradients(GroupPlan& group, const Setup& setup, const RankGroups& groups, const Types& types) {
  group.main_grad = group.main_weight;
  group.optimizer = state_bytes(setup.optimizer, group.main_weight / size_of(types.main), size_of(types.main));
  if (setup.averages == Averages::kEma) group.averages = group.main_weight / size_of(types.main) * kAverageBytes;
  const int64_t copy_size = group.arriving > 0 ? 1 : types.param == types.main ? 0 : size_of(types.param);
  const int64_t written_copy = group.main_weight / size_of(types.main) * copy_size;
  group.optimizer_traffic = 2 * group.main_weight + group.main_grad + 2 * group.optimizer + written_copy;
  if (group.averages > 0) group.optimizer_traffic += group.main_weight + 2 * group.averages;
  const bool in_main_grad = setup.transport == Transport::kNccl && setup.world() == 1 && !is_elsewhere(setup) &&
                            setup.whole_shard == WholeShard::kInPlace && types.reduce == types.main &&
                            types.accumulate == types.main;
  const int64_t total = group.layout->total_numel(), shard = group.layout->shard_numel;
  group.reduce_shard = shard * size_of(types.reduce);
  if (in_main_grad) return;
  group.reduce_buffer = total * size_of(types.reduce);
  if (setup.sum_order == SumOrder::kTree) {
    const bool each = traits(setup.strategy).reduce_timing == ReduceTiming::kEveryMicrobatch;
    group.tree_sum = (each ? shard : total) * size_of(types.main);
    group.tree_digits = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(setup.work.microbatches - 1)));
  }
  if (types.accumulate != types.reduce) group.wide_buffer = total * size_of(types.accumulate);
  int64_t staging = staging_numel(setup.transport, groups.shard, shard);
  if (groups.has_replicas()) {
    const int64_t part = shard / groups.replicate.size;
    group.partial = shard * size_of(types.main);
    group.replica_wire = types.reduce != types.main ? shard * size_of(types.reduce) : 0;
    group.replica_reduce_shard = part * size_of(types.reduce);
    staging = std::max(staging, staging_numel(setup.transport, groups.replicate, part));
  }
  group.staging = staging * size_of(types.reduce);
}

std::vector<std::vector<PlannedParameter>> split(const PlannedUnit& unit, const Setup& setup) {
  std::vector<std::vector<PlannedParameter>> groups;
  for (const PlannedParameter& parameter : unit.parameters) {
    const auto fits = [&](const auto& group) {
      return group.front().dtype == parameter.dtype && group.front().trains == parameter.trains &&
             group.front().travel == parameter.travel &&
             types_of(group.front(), setup.precision).param == types_of(parameter, setup.precision).param;
    };
    const auto found = std::find_if(groups.begin(), groups.end(), fits);
    if (found == groups.end()) {
      groups.push_back({parameter});
    } else {
      found->push_back(parameter);
    }
  }
  return groups;
}

Setup setup_of_blocks(const Setup& setup) {
  Setup blocks = setup;
  if (!has_owners(setup.optimizer)) return blocks;
  blocks.granularity = layout::Granularity::kTensor;
  blocks.owners = layout::Owners::kBalanced;
  return blocks;
}

// Replaces the state of blocks whose tensors are dealt out by that of one rank, which has most of it in all.
void plan_owned_states(const PlannedModel& model, const Setup& setup, std::vector<std::vector<GroupPlan>>& units) {
  const RankGroups groups = rank_groups(setup);
  const StrategyTraits strategy = traits(setup.strategy);
  const int64_t num_owners = groups.shard.size * groups.replicate.size;
  const bool is_whole = !strategy.shards_main_weight;
  const int64_t owners_per_rank = strategy.shards_over_replicas ? 1 : groups.replicate.size;
  const int64_t num_ranks = is_whole ? 1 : num_owners / owners_per_rank;
  layout::OwnerLoads loads(num_owners);
  struct Group {
    GroupPlan* plan;
    std::vector<int64_t> bytes;  // by rank
  };
  std::vector<Group> all;
  std::vector<int64_t> total(static_cast<size_t>(num_ranks));
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const auto split_groups = split(model.blocks[i], setup);
    for (size_t k = 0; k < split_groups.size(); ++k) {
      const std::vector<PlannedParameter>& members = split_groups[k];
      const std::vector<int64_t> owners = deal(members, loads);
      if (!members.front().trains) continue;
      Group group{&units[i][k], std::vector<int64_t>(total.size())};
      for (size_t m = 0; m < members.size(); ++m) {
        const auto rank = static_cast<size_t>(is_whole ? 0 : owners[m] / owners_per_rank);
        const int64_t bytes = state_bytes(setup.optimizer, members[m], UnitRole::kBlock);
        group.bytes[rank] += bytes;
        total[rank] += bytes;
      }
      all.push_back(std::move(group));
    }
  }
  const auto fullest = static_cast<size_t>(std::max_element(total.begin(), total.end()) - total.begin());
  for (Group& group : all) {
    group.plan->optimizer_traffic += 2 * (group.bytes[fullest] - group.plan->optimizer);
    group.plan->optimizer = group.bytes[fullest];
  }
}

}  // namespace

RankGroup rank_group(int64_t size, int64_t stride, int64_t node_size) {
  RankGroup group{size, 1, size};
  group.per_node = std::clamp<int64_t>(node_size / stride, 1, size);
  group.nodes = (size + group.per_node - 1) / group.per_node;
  return group;
}

RankGroups rank_groups(const Setup& setup) {
  RankGroups groups;
  if (traits(setup.strategy).reduce == ReduceKind::kAllReduce) {
    groups.shard = rank_group(setup.data_ranks(), setup.tensor, setup.node_size);
    return groups;
  }
  groups.shard = rank_group(setup.shards, setup.tensor, setup.node_size);
  groups.replicate = rank_group(setup.replicas, setup.shards * setup.tensor, setup.node_size);
  const int64_t forward = setup.forward_group();
  if (forward > 1 && forward < setup.shards) groups.forward = rank_group(forward, setup.tensor, setup.node_size);
  return groups;
}

GroupPlan plan_group(std::span<const PlannedParameter> members, const Setup& setup) {
  const RankGroups groups = rank_groups(setup);
  const Types types = types_of(members.front(), setup.precision);
  GroupPlan group;
  group.ranks = groups;
  group.num_tensors = members.size();
  for (const PlannedParameter& member : members) group.numel += member.numel();
  group.trains = members.front().trains;
  group.layout = std::make_shared<const layout::FlatLayout>(
      make_layout(members, setup, types, groups.shard.size * groups.replicate.size).coarsened(groups.replicate.size));
  plan_weights(group, setup, groups, types);
  if (group.trains) plan_gradients(group, setup, groups, types);
  return group;
}

int64_t state_bytes(Optimizer optimizer, const PlannedParameter& parameter, UnitRole role) {
  const int64_t size = size_of(parameter.dtype);
  const bool is_owned = has_owners(optimizer) && role == UnitRole::kBlock && parameter.shape.size() == 2;
  if (!is_owned) return state_bytes(optimizer, parameter.numel(), size);
  return size * (optimizer == Optimizer::kMuon ? parameter.numel() : parameter.shape[0] + parameter.shape[1]);
}

std::vector<GroupPlan> plan_unit(const PlannedUnit& unit, const Setup& setup) {
  std::vector<GroupPlan> plans;
  const Setup own = setup_of(unit, setup);
  for (const auto& members : split(unit, own)) {
    plans.push_back(plan_group(members, own));
    plans.back().of_experts = unit.of_experts;
  }
  return plans;
}

std::vector<std::vector<GroupPlan>> plan_units(const PlannedModel& model, const Setup& setup) {
  const auto alike = [](const PlannedParameter& a, const PlannedParameter& b) {
    return a.shape == b.shape && a.dtype == b.dtype && a.trains == b.trains && a.compute == b.compute &&
           a.travel == b.travel;
  };
  const Setup of_blocks = setup_of_blocks(setup);
  std::vector<std::vector<GroupPlan>> units;
  std::vector<size_t> distinct;  // blocks that were planned
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const std::vector<PlannedParameter>& own = model.blocks[i].parameters;
    const auto twin = std::find_if(distinct.begin(), distinct.end(), [&](size_t other) {
      const std::vector<PlannedParameter>& its = model.blocks[other].parameters;
      return model.blocks[i].of_experts == model.blocks[other].of_experts &&
             std::equal(own.begin(), own.end(), its.begin(), its.end(), alike);
    });
    const bool is_new = twin == distinct.end();
    units.push_back(is_new ? plan_unit(model.blocks[i], of_blocks) : units[*twin]);
    if (is_new) distinct.push_back(i);
  }
  if (has_owners(setup.optimizer)) plan_owned_states(model, setup, units);
  units.push_back(plan_unit(model.root, model.root.layer >= 0 ? of_blocks : setup));
  return units;
}

}  // namespace fsdp::plan
