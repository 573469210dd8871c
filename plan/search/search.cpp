#include "plan/search/search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "fsdp/base/units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

using models::Recompute;

constexpr std::array<Recompute, 4> kAllRecomputes = {Recompute::kNone, Recompute::kElementwise, Recompute::kGateUp,
                                                     Recompute::kBlock};

// How weights are sharded: mesh, strategy, and what rests between forward and backward.
struct Sharding {
  int64_t replicas, shards;
  Strategy strategy;
  std::optional<std::variant<bool, int64_t>> reshard;
};

// Sizes of a shard group whose groups lie alike in the nodes.
std::vector<int64_t> shard_sizes(int64_t world, int64_t node) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= world; ++size) {
    if (world % size == 0 && (node % size == 0 || size % node == 0)) sizes.push_back(size);
  }
  if (sizes.empty() || sizes.back() != world) sizes.push_back(world);
  return sizes;
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

std::vector<int64_t> microbatch_sizes(int64_t rank_sequences, int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(rank_sequences, most); size *= 2) {
    if (rank_sequences % size == 0) sizes.push_back(size);
  }
  return sizes;
}

auto time_of(const Candidate& candidate) {
  return std::tuple(candidate.floor.seconds(), candidate.floor.communication());
}

bool is_faster(const Candidate& a, const Candidate& b) {
  return std::tuple(time_of(a), a.memory) < std::tuple(time_of(b), b.memory);
}

Candidate evaluate(const PlannedModel& model, const Setup& setup, const SearchSpace& space) {
  const Report report = make_report(model, setup, space.options);
  return {setup, report.memory.total(), step_floor(model, report, space.machine), ""};
}

std::vector<Candidate> evaluate_all(const PlannedModel& model, const SearchSpace& space) {
  const Work& work = space.base.work;
  const int64_t rank_sequences = work.microbatches * work.microbatch_sequences;
  std::vector<Candidate> all;
  for (const Sharding& sharding : shardings(space.base.world(), space.base.node_size)) {
    Setup setup = space.base;
    setup.replicas = sharding.replicas;
    setup.shards = sharding.shards;
    setup.strategy = sharding.strategy;
    setup.reshard_after_forward = sharding.reshard;
    for (const PlannedPrecision& precision : space.precisions) {
      setup.precision = precision;
      for (const int64_t size : microbatch_sizes(rank_sequences, space.most_microbatch_sequences)) {
        setup.work.microbatch_sequences = size;
        setup.work.microbatches = rank_sequences / size;
        for (const Recompute recompute : kAllRecomputes) {
          setup.work.recompute = recompute;
          if (recompute == Recompute::kNone) setup.work.recompute_every = 1;
          all.push_back(evaluate(model, setup, space));
        }
      }
    }
  }
  return all;
}

[[noreturn]] void throw_nothing_fits(const std::vector<Candidate>& all, const SearchSpace& space) {
  const Candidate& smallest = *std::min_element(
      all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.memory < b.memory; });
  throw io::Error(io::ErrorKind::kUsage,
                  "[plan] nothing fits into " + format_bytes(space.memory) + " per rank on " +
                      std::to_string(space.base.world()) + " ranks: of " + std::to_string(all.size()) +
                      " plans the smallest needs " + format_bytes(smallest.memory) + ", " +
                      format_bytes(smallest.memory - space.memory) + " too much (" + describe(smallest.setup) +
                      "). Use more ranks, shorter sequences or a smaller model.");
}

}  // namespace

SearchResult search(const PlannedModel& model, const SearchSpace& space) {
  check(space.base);
  std::vector<Candidate> all = evaluate_all(model, space);
  std::stable_sort(all.begin(), all.end(), is_faster);
  SearchResult result;
  result.num_tried = static_cast<int64_t>(all.size());
  for (Candidate& candidate : all) {
    if (candidate.memory > space.memory) {
      candidate.reason = "needs " + format_bytes(candidate.memory) + ", " +
                         format_bytes(candidate.memory - space.memory) + " too much";
    } else if (!result.best.empty() && candidate.memory >= result.best.back().memory) {
      candidate.reason = "no faster and no smaller than " + describe(result.best.back().setup);
    }
    (candidate.reason.empty() ? result.best : result.losers).push_back(candidate);
  }
  if (result.best.empty()) throw_nothing_fits(all, space);
  return result;
}

namespace {

// Changes of one thing.
std::vector<Knob> all_knobs(const Setup& setup) {
  std::vector<Knob> knobs;
  const auto add = [&](const std::string& text, const std::function<void(Setup&)>& change) {
    Setup changed = setup;
    change(changed);
    knobs.push_back({text, changed, 0, {}});
  };
  for (const Recompute recompute : kAllRecomputes) {
    if (recompute == setup.work.recompute) continue;
    add("recompute " + std::string(name(recompute)), [&](Setup& s) {
      s.work.recompute = recompute;
      s.work.recompute_every = 1;
    });
  }
  if (setup.work.microbatch_sequences % 2 == 0) {
    add("microbatches of half the size", [](Setup& s) {
      s.work.microbatch_sequences /= 2;
      s.work.microbatches *= 2;
    });
  }
  if (setup.work.microbatches % 2 == 0) {
    add("microbatches of twice the size", [](Setup& s) {
      s.work.microbatch_sequences *= 2;
      s.work.microbatches /= 2;
    });
  }
  if (setup.precision == parse_planned_precision("bf16"))
    add("gradients in bf16 on the wire", [](Setup& s) { s.precision = parse_planned_precision("bf16_reduce"); });
  if (setup.precision == parse_planned_precision("fp32"))
    add("precision bf16", [](Setup& s) { s.precision = parse_planned_precision("bf16"); });
  const bool may_grow = 2 * setup.world() <= kMostRanks && setup.transport != Transport::kSharedMemory;
  if (may_grow && setup.strategy != Strategy::kNoShard)
    add("twice the ranks, as shards", [](Setup& s) { s.shards *= 2; });
  for (const Sharding& other : shardings(setup.world(), setup.node_size)) {
    const bool same = other.replicas == setup.replicas && other.shards == setup.shards &&
                      other.strategy == setup.strategy && other.reshard == setup.reshard_after_forward;
    if (same) continue;
    std::string text = std::string(fsdp::name(other.strategy)) + " on " + std::to_string(other.replicas) + " x " +
                       std::to_string(other.shards);
    if (other.reshard) text += ", weights resting inside nodes";
    add(text, [&](Setup& s) {
      s.replicas = other.replicas;
      s.shards = other.shards;
      s.strategy = other.strategy;
      s.reshard_after_forward = other.reshard;
    });
  }
  return knobs;
}

std::string largest_part(const Report& report) {
  const auto& bytes = report.memory.bytes;
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return std::string(name(static_cast<Part>(largest - bytes.begin()))) + " (" + format_bytes(*largest) + ")";
}

double busy_seconds(const StepFloor& floor, Bound bound) {
  return bound == Bound::kCompute ? floor.compute : bound == Bound::kNodeLinks ? floor.node_links : floor.network;
}

}  // namespace

Limits find_limits(const PlannedModel& model, const Report& report, const SearchSpace& space) {
  Limits limits;
  limits.floor = step_floor(model, report, space.machine);
  const int64_t total = report.memory.total();
  limits.memory_is_short = space.memory > 0 && total > space.memory;
  const Bound bound = limits.floor.bound();
  limits.limiting = limits.memory_is_short ? "memory: " + format_bytes(total - space.memory) +
                                                 " too much; the largest part is " + largest_part(report)
                                           : std::string(name(bound));
  for (Knob& knob : all_knobs(report.setup)) {
    const Candidate candidate = evaluate(model, knob.setup, space);
    knob.memory = candidate.memory;
    knob.floor = candidate.floor;
    const bool helps = limits.memory_is_short
                           ? knob.memory < total
                           : busy_seconds(knob.floor, bound) < 0.999 * busy_seconds(limits.floor, bound) &&
                                 knob.floor.seconds() < limits.floor.seconds() &&
                                 (space.memory == 0 || knob.memory <= space.memory);
    if (helps) limits.knobs.push_back(knob);
  }
  // What is enough, at the least price in time; then what helps most.
  const auto order = [&](const Knob& knob) {
    if (!limits.memory_is_short) return std::tuple(false, knob.floor.seconds(), static_cast<double>(knob.memory));
    const bool is_enough = knob.memory <= space.memory;
    const auto memory = static_cast<double>(knob.memory);
    return std::tuple(!is_enough, is_enough ? knob.floor.seconds() : memory, memory);
  };
  std::stable_sort(limits.knobs.begin(), limits.knobs.end(),
                   [&](const Knob& a, const Knob& b) { return order(a) < order(b); });
  constexpr size_t kMost = 3;
  if (limits.knobs.size() > kMost) limits.knobs.resize(kMost);
  return limits;
}

}  // namespace fsdp::plan
