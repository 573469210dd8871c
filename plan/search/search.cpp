#include "plan/search/search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "fsdp/base/units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

using models::Recompute;

std::vector<int64_t> microbatch_sizes(int64_t rank_sequences, int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(rank_sequences, most); size *= 2) {
    if (rank_sequences % size == 0) sizes.push_back(size);
  }
  return sizes;
}

auto time_of(const Candidate& candidate) {
  return std::tuple(candidate.price.seconds(), candidate.price.floor.communication());
}

bool is_faster(const Candidate& a, const Candidate& b) {
  return std::tuple(time_of(a), a.price.memory) < std::tuple(time_of(b), b.price.memory);
}

std::vector<Candidate> evaluate_all(const PlannedModel& model, const SearchSpace& space) {
  const Work& work = space.base.work;
  const int64_t rank_sequences = work.microbatches * work.microbatch_sequences;
  std::vector<Candidate> all;
  for (const Sharding& sharding : shardings(space.base.world(), space.base.node_size)) {
    Setup setup = space.base;
    sharding.apply_to(setup);
    for (const PlannedPrecision& precision : space.precisions) {
      setup.precision = precision;
      for (const int64_t size : microbatch_sizes(rank_sequences, space.most_microbatch_sequences)) {
        setup.work.microbatch_sequences = size;
        setup.work.microbatches = rank_sequences / size;
        for (const Recompute recompute : kAllRecomputes) {
          setup.work.recompute = recompute;
          if (recompute == Recompute::kNone) setup.work.recompute_every = 1;
          all.push_back({setup, price(model, setup, space), ""});
        }
      }
    }
  }
  return all;
}

[[noreturn]] void throw_nothing_fits(const std::vector<Candidate>& all, const SearchSpace& space) {
  const Candidate& smallest = *std::min_element(
      all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.price.memory < b.price.memory; });
  throw io::Error(io::ErrorKind::kUsage,
                  "[plan] nothing fits into " + format_bytes(space.memory) + " per rank on " +
                      std::to_string(space.base.world()) + " ranks: of " + std::to_string(all.size()) +
                      " plans the smallest needs " + format_bytes(smallest.price.memory) + ", " +
                      format_bytes(smallest.price.memory - space.memory) + " too much (" + describe(smallest.setup) +
                      "). Use more ranks, shorter sequences or a smaller model.");
}

// Of plans that a prediction cannot tell apart, the smallest stays.
void drop_near_twins(SearchResult& result) {
  constexpr double kAlike = 1.005;
  std::vector<Candidate> kept;
  for (size_t first = 0, last; first < result.best.size(); first = last + 1) {
    last = first;
    const double limit = kAlike * result.best[first].price.seconds();
    while (last + 1 < result.best.size() && result.best[last + 1].price.seconds() <= limit) ++last;
    for (size_t i = first; i < last; ++i) {
      result.losers.push_back(result.best[i]);
      result.losers.back().reason = "less than 0.5 % faster than " + describe(result.best[last].setup);
    }
    kept.push_back(result.best[last]);
  }
  result.best = std::move(kept);
  std::stable_sort(result.losers.begin(), result.losers.end(), is_faster);
}

}  // namespace

SearchResult search(const PlannedModel& model, const SearchSpace& space) {
  check(space.base);
  std::vector<Candidate> all = evaluate_all(model, space);
  std::stable_sort(all.begin(), all.end(), is_faster);
  SearchResult result;
  result.num_tried = static_cast<int64_t>(all.size());
  for (Candidate& candidate : all) {
    const int64_t memory = candidate.price.memory;
    if (memory > space.memory) {
      candidate.reason = "needs " + format_bytes(memory) + ", " + format_bytes(memory - space.memory) + " too much";
    } else if (!result.best.empty() && memory >= result.best.back().price.memory) {
      candidate.reason = "no faster and no smaller than " + describe(result.best.back().setup);
    }
    (candidate.reason.empty() ? result.best : result.losers).push_back(candidate);
  }
  if (result.best.empty()) throw_nothing_fits(all, space);
  if (space.hardware) drop_near_twins(result);
  return result;
}

}  // namespace fsdp::plan
