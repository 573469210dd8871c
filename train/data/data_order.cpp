#include "train/data/data_order.h"

#include <numeric>

#include "train/data/shuffle.h"

namespace fsdp::train {
namespace {

// Every source has a stream of its own, so that equal data sets of a mixture do not go in step.
uint64_t source_seed(uint64_t seed, size_t source) { return seed + source * 0x9e3779b97f4a7c15; }

}  // namespace

DataOrder::DataOrder(uint64_t seed, std::vector<int64_t> num_sequences, const std::vector<double>& weights)
    : seed_(seed),
      num_sequences_(std::move(num_sequences)),
      first_index_(num_sequences_.size()),
      mixture_(seed, weights) {
  std::exclusive_scan(num_sequences_.begin(), num_sequences_.end(), first_index_.begin(), int64_t{0});
}

std::vector<int64_t> DataOrder::sequences(int64_t position, int64_t count) const {
  std::vector<int64_t> indices;
  for (int64_t i = position; i < position + count; ++i) {
    const auto [source, number] = mixture_.at(i);
    const int64_t size = num_sequences_[source];
    const Shuffle shuffle(source_seed(seed_, source), static_cast<uint64_t>(number / size),
                          static_cast<uint64_t>(size));
    indices.push_back(first_index_[source] + static_cast<int64_t>(shuffle(static_cast<uint64_t>(number % size))));
  }
  return indices;
}

}  // namespace fsdp::train
