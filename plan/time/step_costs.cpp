#include "plan/time/step_costs.h"

#include <algorithm>

#include "plan/time/compute_time.h"

namespace fsdp::plan::time {
namespace {

class Prices {
 public:
  Prices(const StepWork& work, const Hardware& hardware)
      : work_(work),
        hardware_(hardware),
        traits_(traits(work.strategy)),
        shard_(RankGroup::strided(work.shard_ranks, work.tensor_ranks, work.ranks_per_node)),
        replicas_(RankGroup::strided(work.replica_ranks, work.shard_ranks * work.tensor_ranks, work.ranks_per_node)),
        data_(RankGroup::strided(work.ranks() / work.tensor_ranks, work.tensor_ranks, work.ranks_per_node)),
        experts_(RankGroup::neighbours(work.expert_ranks, work.ranks_per_node)),
        world_(RankGroup::neighbours(work.ranks(), work.ranks_per_node)) {}

  // Ranks along `ep` have different experts, as ranks along `tp` have different parts of a layer; those along `tp` have
  // the same, as those along `shard` do.
  StepCosts::Unit of_experts(UnitWork unit) const {
    StepWork work = work_;
    work.shard_ranks = work_.shard_ranks * work_.tensor_ranks / work_.expert_ranks;
    work.tensor_ranks = work_.expert_ranks;
    work.expert_ranks = 1;
    if (work.reshard_after_forward)
      work.reshard_after_forward = std::min(*work.reshard_after_forward, work.shard_ranks);
    unit.of_experts = false;
    return Prices(work, hardware_).of(unit);
  }

  StepCosts::Unit of(const UnitWork& unit) const {
    if (unit.of_experts) return of_experts(unit);
    StepCosts::Unit costs;
    const Transfer from_shards = among_neighbours(unit.gather_bytes, shard_);
    costs.gather = {from_shards};
    costs.gather_with_replicas = {over_replicas(unit.gather_bytes), from_shards};
    if (const auto size = work_.reshard_after_forward) {
      const RankGroup group = RankGroup::strided(*size, work_.tensor_ranks, work_.ranks_per_node);
      costs.gather_from_forward_group = {among_neighbours(unit.gather_bytes, group)};
    }
    if (traits_.reduce == ReduceKind::kAllReduce) {
      costs.reduce.assign(2, among_neighbours(unit.reduce_bytes, data_));
    } else {
      costs.reduce = {among_neighbours(unit.reduce_bytes, shard_)};
    }
    costs.reduce_with_replicas = costs.reduce;
    const size_t stages = traits_.shards_over_replicas ? 1 : 2;
    costs.reduce_with_replicas.insert(costs.reduce_with_replicas.end(), stages, over_replicas(unit.reduce_bytes));
    return costs;
  }

  // Of activations, which hold the computation up.
  double transfers_ms(const Work& work) const {
    const RankGroup tensor = RankGroup::neighbours(work_.tensor_ranks, work_.ranks_per_node);
    const RankGroup context =
        RankGroup::strided(work_.context_ranks, work_.tensor_ranks * work_.expert_ranks, work_.ranks_per_node);
    return static_cast<double>(work.tensor_calls) * slimmed(work_.tensor_bytes, tensor, 1).alone_ms() +
           static_cast<double>(work.context_calls) *
               slimmed(work_.context_bytes, context, work_.tensor_ranks * work_.expert_ranks).alone_ms() +
           static_cast<double>(work.small_calls) * scatter_or_gather(int64_t{16} * tensor.size * experts_.size,
                                                                     tensor.size > 1 ? tensor : experts_, hardware_)
                                                       .alone_ms() +
           static_cast<double>(work.expert_calls) * exchange(work_.expert_bytes, experts_, hardware_).alone_ms() +
           (work.ring_rounds > 0 ? exposed_ring_ms(work) : 0);
  }

  // What attention to the blocks that came does not hide.
  double exposed_ring_ms(const Work& work) const {
    const RankGroup group =
        RankGroup::strided(work_.context_ranks, work_.tensor_ranks * work_.expert_ranks, work_.ranks_per_node);
    const LinkKind link = group.in_node == group.size ? LinkKind::kNode : LinkKind::kNetwork;
    const auto steps = static_cast<double>(group.size - 1);
    const auto round = [&](int64_t bytes) { return steps * message(bytes / group.size, link, hardware_).alone_ms(); };
    const double all = static_cast<double>(work.ring_rounds) * round(work_.context_bytes) +
                       static_cast<double>(work.ring_gradient_rounds) * round(work_.context_gradient_bytes);
    const double hidden = attention_ms(work, work_.dtype, hardware_) * steps / static_cast<double>(group.size);
    return std::max(0.0, all - hidden);
  }

  // A few bytes that all ranks need to have.
  double small_collective_ms() const {
    return scatter_or_gather(int64_t{16} * work_.ranks(), world_, hardware_).alone_ms();
  }

 private:
  Transfer among_neighbours(int64_t bytes, const RankGroup& group) const {
    return slimmed(bytes, group, work_.tensor_ranks);
  }
  Transfer over_replicas(int64_t bytes) const {
    return slimmed(bytes / work_.shard_ranks, replicas_, work_.shard_ranks * work_.tensor_ranks);
  }

  // Of a group whose ranks are `stride` apart. Rings enter a pod by one of the nodes that they have there, so the level
  // above pods carries that part of what the nodes send, and holds them up where it is thinner than that.
  Transfer slimmed(int64_t bytes, const RankGroup& group, int stride) const {
    Transfer transfer = scatter_or_gather(bytes, group, hardware_);
    const int64_t pod = int64_t{work_.nodes_per_pod} * work_.ranks_per_node;
    const auto in_pod = static_cast<int>(std::clamp<int64_t>(pod / stride, 1, group.size));
    if (pod == 0 || in_pod == group.size) return transfer;
    const int nodes_in_pod = std::max(1, in_pod / group.in_node);
    transfer.link_ms *= std::max(1.0, work_.slimming / nodes_in_pod);
    return transfer;
  }

  const StepWork& work_;
  const Hardware& hardware_;
  StrategyTraits traits_;
  RankGroup shard_, replicas_, data_, experts_, world_;
};

}  // namespace

const std::vector<Transfer>& StepCosts::transfers(const Instruction& instruction) const {
  const Unit& unit = units.at(static_cast<size_t>(instruction.unit));
  const bool with_replicas = instruction.reach == Reach::kShardsAndReplicas;
  if (instruction.action == Action::kStartReduce) return with_replicas ? unit.reduce_with_replicas : unit.reduce;
  if (instruction.reach == Reach::kForwardGroup) return unit.gather_from_forward_group;
  return with_replicas ? unit.gather_with_replicas : unit.gather;
}

double StepCosts::compute_ms(const Instruction& instruction) const {
  switch (instruction.action) {
    case Action::kCompute: {
      const bool is_forward = instruction.pass == schedule::Pass::kForward;
      return (is_forward ? forward_ms : backward_ms).at(static_cast<size_t>(instruction.passage));
    }
    case Action::kEndBackward:
      return end_of_backward_ms;
    case Action::kOptimize:
      return optimizer_ms;
    default:
      return 0;
  }
}

double StepCosts::transfer_ms(const Instruction& instruction) const {
  const bool is_forward = instruction.pass == schedule::Pass::kForward;
  const std::vector<double>& all = is_forward ? forward_transfer_ms : backward_transfer_ms;
  if (instruction.action != Action::kCompute || all.empty()) return 0;
  return all.at(static_cast<size_t>(instruction.passage));
}

StepCosts price(const StepWork& work, const Hardware& hardware) {
  check(work);
  check(hardware);
  StepCosts costs;
  const Prices prices(work, hardware);
  for (const Passage& passage : work.passages) {
    costs.forward_transfer_ms.push_back(prices.transfers_ms(passage.forward));
    costs.backward_transfer_ms.push_back(prices.transfers_ms(passage.backward));
    costs.forward_ms.push_back(work_ms(passage.forward, work.dtype, hardware) + costs.forward_transfer_ms.back());
    costs.backward_ms.push_back(work_ms(passage.backward, work.dtype, hardware) + costs.backward_transfer_ms.back());
  }
  for (const UnitWork& unit : work.units) costs.units.push_back(prices.of(unit));
  // Ranks compare what they did on the host, which for a GPU runs ahead.
  if (hardware.execution == Execution::kProgramComputes) costs.end_of_backward_ms = prices.small_collective_ms();
  costs.optimizer_ms = prices.small_collective_ms() + memory_ms(work.optimizer_bytes, hardware);
  return costs;
}

}  // namespace fsdp::plan::time
