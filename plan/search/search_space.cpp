#include "plan/search/search_space.h"

#include <algorithm>
#include <cstdio>

#include "plan/forecast/planned_work.h"

namespace fsdp::plan {
namespace {

// Sizes of a shard group whose groups lie alike in the nodes.
std::vector<int64_t> shard_sizes(int64_t world, int64_t node) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= world; ++size) {
    if (world % size == 0 && (node % size == 0 || size % node == 0)) sizes.push_back(size);
  }
  if (sizes.empty() || sizes.back() != world) sizes.push_back(world);
  return sizes;
}

}  // namespace

bool Sharding::is_of(const Setup& setup) const {
  return replicas == setup.replicas && shards == setup.shards && strategy == setup.strategy &&
         reshard == setup.reshard_after_forward;
}

void Sharding::apply_to(Setup& setup) const {
  setup.replicas = replicas;
  setup.shards = shards;
  setup.strategy = strategy;
  setup.reshard_after_forward = reshard;
}

std::vector<Sharding> shardings(int64_t world, int64_t node) {
  std::vector<Sharding> list = {{1, world, Strategy::kNoShard, {}}};
  for (const int64_t shards : shard_sizes(world, node)) {
    if (shards == 1) continue;
    const int64_t replicas = world / shards;
    const bool flat = replicas == 1;
    list.push_back({replicas, shards, Strategy::kOptim, {}});
    list.push_back({replicas, shards, flat ? Strategy::kOptimGrads : Strategy::kHybridZero2, {}});
    const auto sharded = [&](Strategy strategy) {
      list.push_back({replicas, shards, strategy, {}});
      if (shards > node && shards % node == 0 && node > 1) list.push_back({replicas, shards, strategy, node});
    };
    sharded(flat ? Strategy::kOptimGradsParams : Strategy::kHybrid);
    if (!flat) sharded(Strategy::kHybridOptim);
  }
  return list;
}

std::vector<Sharding> shardings(const Setup& setup) {
  std::vector<Sharding> list = shardings(setup.data_ranks(), std::max<int64_t>(1, setup.node_size / setup.tensor));
  const int64_t kept = setup.context * setup.experts;  // together, of each shard group
  std::erase_if(list, [&](const Sharding& each) {
    const auto* group = each.reshard ? std::get_if<int64_t>(&*each.reshard) : nullptr;
    return each.shards % kept != 0 || (group != nullptr && each.shards / setup.experts % *group != 0);
  });
  return list;
}

void StageOrder::apply_to(Setup& setup) const {
  setup.order = order;
  setup.stages_per_rank = stages_per_rank;
}

std::vector<StageOrder> stage_orders(const PlannedModel& model, const Setup& setup) {
  std::vector<StageOrder> list = {{setup.order, setup.stages_per_rank}};
  if (setup.pipeline == 1) return list;
  const auto add = [&](const StageOrder& each) {
    if (!each.is_of(setup)) list.push_back(each);
  };
  add({pipeline::Order::k1F1B, 1});
  add({pipeline::Order::kZeroBubble, 1});
  const auto layers = static_cast<int64_t>(model.blocks.size());
  for (int64_t several = 2; several <= 8 && several * setup.pipeline <= layers; several *= 2)
    add({pipeline::Order::kInterleaved, several});
  return list;
}

bool goes(const Setup& setup) {
  if (setup.pipeline == 1) return true;
  if (setup.order == pipeline::Order::kInterleaved) return setup.work.microbatches % setup.pipeline == 0;
  return setup.order != pipeline::Order::kZeroBubble || setup.work.recompute == models::Recompute::kNone;
}

void predict_for(SearchSpace& space, const time::Hardware& hardware) {
  const time::Hardware with = with_rails(hardware, space.base, space.options.network);
  space.machine = {with.flops(dtype_of_products(space.base)), with.node.bytes_per_second,
                   with.network.bytes_per_second};
  space.hardware = hardware;
}

Price price(const PlannedModel& model, const Report& report, const SearchSpace& space) {
  Price result{report.memory.total(), step_floor(model, report, space.machine), {}};
  if (!space.hardware) return result;
  const Forecast step = forecast(model, report.setup, space.options.network, *space.hardware);
  result.step = {step.seconds(), 1e-3 * step.exposed_ms(), step.step.mfu, step.path, step.limiting()};
  return result;
}

Price price(const PlannedModel& model, const Setup& setup, const SearchSpace& space) {
  return price(model, make_report(model, setup, space.options), space);
}

std::string duration_text(double seconds) {
  std::array<char, 48> text{};
  const bool is_long = seconds >= 10;
  std::snprintf(text.data(), text.size(), is_long ? "%.2f s" : "%.1f ms", is_long ? seconds : 1e3 * seconds);
  return text.data();
}

}  // namespace fsdp::plan
