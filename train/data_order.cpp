#include "train/data_order.h"

#include "train/shuffle.h"

namespace fsdp::train {

std::vector<int64_t> DataOrder::sequences(int64_t position, int64_t count) const {
  std::vector<int64_t> indices;
  for (int64_t i = position; i < position + count; ++i) {
    const Shuffle shuffle(seed_, static_cast<uint64_t>(i / num_sequences_), static_cast<uint64_t>(num_sequences_));
    indices.push_back(static_cast<int64_t>(shuffle(static_cast<uint64_t>(i % num_sequences_))));
  }
  return indices;
}

}  // namespace fsdp::train
