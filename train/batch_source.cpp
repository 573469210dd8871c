#include "train/batch_source.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp::train {

void check_batch(const TrainConfig& config, const World& world, const PackedSplit& data) {
  const int64_t batch = config.batch_sequences;
  const int64_t unit = world.size * std::max<int64_t>(1, config.microbatch_sequences);
  if (batch % unit != 0) {
    throw Error(ErrorCode::kUsage, "[train] train.batch_sequences: got " + std::to_string(batch) +
                                       ", expected a multiple of " + std::to_string(unit) + " (" +
                                       std::to_string(world.size) + " ranks x microbatch_sequences). Set it to " +
                                       std::to_string((batch + unit - 1) / unit * unit) +
                                       ", or change the number of ranks.");
  }
  if (data.num_sequences() < batch) {
    throw Error(ErrorCode::kData,
                "[train] the data has " + std::to_string(data.num_sequences()) + " sequences of " +
                    std::to_string(data.sequence_length()) + " tokens, one batch for " + std::to_string(world.size) +
                    " rank(s) needs " + std::to_string(batch) +
                    ". Lower train.batch_sequences, data.sequence_length or the number of ranks, or add data.");
  }
}

PackedBatches::PackedBatches(const TrainConfig& config, const World& world, const PackedSplit& data)
    : data_(data),
      batch_sequences_(config.batch_sequences),
      order_(static_cast<uint64_t>(config.seed), std::max<int64_t>(1, data.num_sequences())),
      rank_(world.rank),
      rank_sequences_(config.batch_sequences / world.size),
      micro_sequences_(config.microbatch_sequences > 0 ? config.microbatch_sequences : rank_sequences_) {
  check_batch(config, world, data);
}

int64_t PackedBatches::consumed(int64_t step) const {
  return first_consumed_ + (step - first_step_) * batch_sequences_;
}

void PackedBatches::continue_at(int64_t step, int64_t consumed) {
  first_step_ = step;
  first_consumed_ = consumed;
}

int64_t PackedBatches::num_targets(int64_t step) const {
  return std::max<int64_t>(1, data_.num_targets(order_.sequences(consumed(step), batch_sequences_)));
}

int64_t PackedBatches::position(int64_t step, int64_t micro) const {
  return consumed(step) + rank_ * rank_sequences_ + micro * micro_sequences_;
}

Batch PackedBatches::microbatch(int64_t step, int64_t micro) const {
  return make_batch(data_, order_.sequences(position(step, micro), micro_sequences_));
}

}  // namespace fsdp::train
