#include "plan/search/search.h"

#include <algorithm>
#include <tuple>

#include "fsdp/base/units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

using models::Recompute;

constexpr double kAlike = 1.005;  // a smaller ratio of two predicted times says nothing

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
  const std::vector<StageOrder> orders = stage_orders(model, space.base);
  std::vector<Candidate> all;
  for (const Sharding& sharding : shardings(space.base)) {
    Setup setup = space.base;
    sharding.apply_to(setup);
    for (const PlannedPrecision& precision : space.precisions) {
      setup.precision = precision;
      for (const int64_t size : microbatch_sizes(rank_sequences, space.most_microbatch_sequences)) {
        setup.work.microbatch_sequences = size;
        setup.work.microbatches = rank_sequences / size;
        for (const Recompute recompute : kAllRecomputes) {
          const bool is_of_parts = recompute == Recompute::kElementwise || recompute == Recompute::kGateUp;
          if (is_of_parts && space.base.tensor > 1) continue;  // check_axes()
          setup.work.recompute = recompute;
          if (recompute == Recompute::kNone) setup.work.recompute_every = 1;
          for (const StageOrder& order : orders) {
            order.apply_to(setup);
            if (goes(setup)) all.push_back({setup, price(model, setup, space), {}, {}});
          }
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

// Of candidates in the order of time: those that fit and take less memory than all before them. Where times are
// predicted, of neighbours that no prediction can tell apart the smallest.
std::vector<size_t> find_best(const std::vector<Candidate>& all, const SearchSpace& space) {
  std::vector<size_t> best;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t memory = all[i].price.memory;
    if (memory <= space.memory && (best.empty() || memory < all[best.back()].price.memory)) best.push_back(i);
  }
  if (!space.hardware) return best;
  std::vector<size_t> kept;
  for (size_t first = 0, last; first < best.size(); first = last + 1) {
    last = first;
    const double limit = kAlike * all[best[first]].price.seconds();
    while (last + 1 < best.size() && all[best[last + 1]].price.seconds() <= limit) ++last;
    kept.push_back(best[last]);
  }
  return kept;
}

// Why it is not among the best, which are given: too large, or the fastest that is no larger is as fast.
void give_reason(Candidate& loser, const std::vector<Candidate>& best, const SearchSpace& space) {
  const int64_t memory = loser.price.memory;
  if (memory > space.memory) {
    loser.reason = "needs " + format_bytes(memory) + ", " + format_bytes(memory - space.memory) + " too much";
    return;
  }
  const auto rival =
      std::find_if(best.begin(), best.end(), [&](const Candidate& each) { return each.price.memory <= memory; });
  loser.rival = static_cast<size_t>(rival - best.begin());
  loser.reason =
      loser.price.seconds() < rival->price.seconds() ? "less than 0.5 % faster than" : "no faster and no smaller than";
}

}  // namespace

SearchResult search(const PlannedModel& model, const SearchSpace& space) {
  check(space.base);
  std::vector<Candidate> all = evaluate_all(model, space);
  std::stable_sort(all.begin(), all.end(), is_faster);
  const std::vector<size_t> best = find_best(all, space);
  if (best.empty()) throw_nothing_fits(all, space);
  SearchResult result;
  result.num_tried = static_cast<int64_t>(all.size());
  for (const size_t i : best) result.best.push_back(all[i]);
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::binary_search(best.begin(), best.end(), i)) continue;
    give_reason(all[i], result.best, space);
    result.losers.push_back(all[i]);
  }
  return result;
}

}  // namespace fsdp::plan
