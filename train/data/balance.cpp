#include "train/data/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace fsdp::train {
namespace {

constexpr double kEqualEnough = 1e-3;  // of the mean: more swaps are not worth their time
constexpr double kFairEnough = 1e-2;   // likewise, of swaps that make microbatches less alike
constexpr int kMostSwaps = 256;

// [Note: Dealing] The batch is sorted by work and cut into as many layers as there are microbatches: what ranks compute
// at the same time is alike. Within a layer the heaviest sequence goes to the rank that has least so far and room in
// the layer. Then the rank with most and the others, and the rank with least and the others, swap sequences as long as
// that brings them nearer to each other: of one layer, and where no such swap is left and the ranks still differ, of
// any.
class Deal {
 public:
  Deal(const std::vector<double>& work, const DealShape& shape)
      : work_(work),
        shape_(shape),
        sums_(static_cast<size_t>(shape.num_ranks)),
        cells_(static_cast<size_t>(shape.num_ranks * shape.num_microbatches)) {
    std::vector<int64_t> sorted(work.size());
    std::iota(sorted.begin(), sorted.end(), int64_t{0});
    std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return at(a) > at(b); });
    for (size_t i = 0; i < sorted.size(); ++i) {
      give(sorted[i], static_cast<int64_t>(i) / (shape.num_ranks * shape.micro_sequences));
    }
    for (const Layers layers : {Layers::kSame, Layers::kAny}) {
      for (int i = 0; i < kMostSwaps && swap_once(layers); ++i) continue;
    }
  }

  std::vector<int64_t> result() const {
    std::vector<int64_t> dealt;
    for (const std::vector<int64_t>& cell : cells_) dealt.insert(dealt.end(), cell.begin(), cell.end());
    return dealt;
  }

 private:
  enum class Layers { kSame, kAny };
  struct Place {
    int64_t layer;
    size_t cell, index;
  };
  struct Swap {
    Place a, b;
  };

  double at(int64_t sequence) const { return work_[static_cast<size_t>(sequence)]; }
  size_t cell_of(size_t rank, int64_t layer) const {
    return rank * static_cast<size_t>(shape_.num_microbatches) + static_cast<size_t>(layer);
  }

  void give(int64_t sequence, int64_t layer) {
    std::optional<size_t> best;
    for (size_t rank = 0; rank < sums_.size(); ++rank) {
      const bool has_room = cells_[cell_of(rank, layer)].size() < static_cast<size_t>(shape_.micro_sequences);
      if (has_room && (!best || sums_[rank] < sums_[*best])) best = rank;
    }
    cells_[cell_of(*best, layer)].push_back(sequence);
    sums_[*best] += at(sequence);
  }

  // False if the ranks are equal enough, or nothing helps.
  bool swap_once(Layers layers) {
    const auto [least, most] = std::minmax_element(sums_.begin(), sums_.end());
    const double mean = std::accumulate(sums_.begin(), sums_.end(), 0.0) / static_cast<double>(sums_.size());
    const double enough = layers == Layers::kSame ? kEqualEnough : kFairEnough;
    if (*most - *least <= enough * mean) return false;
    const auto rich = static_cast<size_t>(most - sums_.begin()), poor = static_cast<size_t>(least - sums_.begin());
    if (swap_between(rich, poor, layers)) return true;
    for (size_t rank = 0; rank < sums_.size(); ++rank) {
      if (swap_between(rich, rank, layers) || swap_between(rank, poor, layers)) return true;
    }
    return false;
  }

  bool swap_between(size_t rich, size_t poor, Layers layers) {
    const std::optional<Swap> swap = best_swap(rich, poor, layers);
    if (!swap) return false;
    int64_t& a = cells_[swap->a.cell][swap->a.index];
    int64_t& b = cells_[swap->b.cell][swap->b.index];
    const double moved = at(a) - at(b);
    sums_[rich] -= moved;
    sums_[poor] += moved;
    std::swap(a, b);
    return true;
  }

  // What leaves the two ranks nearest to each other, if anything brings them nearer by more than rounding.
  std::optional<Swap> best_swap(size_t rich, size_t poor, Layers layers) const {
    const double gap = sums_[rich] - sums_[poor];
    std::optional<Swap> best;
    double best_rest = gap * (1 - 1e-9);
    const std::vector<Place> places = places_of(poor);
    for (const Place& a : places_of(rich)) {
      for (const Place& b : places) {
        if (layers == Layers::kSame && a.layer != b.layer) continue;
        const double rest = std::abs(gap - 2 * (at(cells_[a.cell][a.index]) - at(cells_[b.cell][b.index])));
        if (rest >= best_rest) continue;
        best_rest = rest;
        best = Swap{a, b};
      }
    }
    return best;
  }

  std::vector<Place> places_of(size_t rank) const {
    std::vector<Place> places;
    for (int64_t layer = 0; layer < shape_.num_microbatches; ++layer) {
      const size_t cell = cell_of(rank, layer);
      for (size_t index = 0; index < cells_[cell].size(); ++index) places.push_back({layer, cell, index});
    }
    return places;
  }

  const std::vector<double>& work_;
  const DealShape& shape_;
  std::vector<double> sums_;                 // by rank
  std::vector<std::vector<int64_t>> cells_;  // by rank, then layer
};

}  // namespace

std::vector<int64_t> deal_by_work(const std::vector<double>& work, const DealShape& shape) {
  return Deal(work, shape).result();
}

double imbalance(const std::vector<double>& work, const DealShape& shape, const std::vector<int64_t>& dealt) {
  const auto share = static_cast<size_t>(shape.num_microbatches * shape.micro_sequences);
  std::vector<double> sums(static_cast<size_t>(shape.num_ranks));
  for (size_t i = 0; i < dealt.size(); ++i) sums[i / share] += work[static_cast<size_t>(dealt[i])];
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(sums.size());
  const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
  return mean > 0 ? (*most - *least) / mean : 0;
}

}  // namespace fsdp::train
