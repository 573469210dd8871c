#include "train/data_order.h"

#include "train/shuffle.h"

namespace fsdp::train {

std::vector<int64_t> DataOrder::sequences(int64_t step) const {
  std::vector<int64_t> indices;
  int64_t position = step * batch_sequences_;
  for (int64_t i = 0; i < batch_sequences_; ++i, ++position) {
    const Shuffle shuffle(seed_, static_cast<uint64_t>(position / num_sequences_),
                          static_cast<uint64_t>(num_sequences_));
    indices.push_back(static_cast<int64_t>(shuffle(static_cast<uint64_t>(position % num_sequences_))));
  }
  return indices;
}

}  // namespace fsdp::train
