#include "train/data/batch_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.h"
#include "train/config/sum_tree.h"

namespace fsdp::train {
namespace {

DataOrder make_order(int64_t seed, const PackedSplit& data) {
  std::vector<int64_t> num_sequences;
  std::vector<double> weights;
  for (size_t source = 0; source < data.sources().size(); ++source) {
    num_sequences.push_back(std::max<int64_t>(1, data.num_sequences(source)));
    weights.push_back(data.sources()[source].weight);
  }
  return DataOrder(static_cast<uint64_t>(seed), std::move(num_sequences), weights);
}

std::string parts_text(const RankPlace& place) {
  return std::to_string(place.num_data) + (place.num_stages * place.num_tensor * place.num_context == 1
                                               ? " rank(s)"
                                               : " groups of ranks with one batch");
}

}  // namespace

void check_batch(const TrainConfig& config, const RankPlace& place, const PackedSplit& data) {
  const int64_t unit = place.num_data * std::max<int64_t>(1, config.microbatch_sequences);
  const auto check_even = [&](const char* key, int64_t sequences) {
    if (sequences % unit == 0) return;
    throw Error(ErrorCode::kUsage,
                std::string("[train] ") + key + ": got " + std::to_string(sequences) + ", expected a multiple of " +
                    std::to_string(unit) + " (" + parts_text(place) + " x microbatch_sequences). Set it to " +
                    std::to_string((sequences + unit - 1) / unit * unit) + ", or change the number of ranks.");
  };
  const int64_t batch = config.batch_sequences;
  check_even("train.batch_sequences", batch);
  check_even("train.batch_warmup_sequences", config.batch_warmup_sequences);
  if (data.num_sequences() < batch) {
    throw Error(ErrorCode::kData,
                "[train] the data has " + std::to_string(data.num_sequences()) + " sequences of " +
                    std::to_string(data.sequence_length()) + " tokens, one batch for " + parts_text(place) + " needs " +
                    std::to_string(batch) +
                    ". Lower train.batch_sequences, data.sequence_length or the number of ranks, or add data.");
  }
}

PackedBatches::PackedBatches(const Config& config, const RankPlace& place, const PackedSplit& data)
    : data_(data),
      ramp_(config.train),
      pieces_(config.data),
      order_(make_order(config.train.seed, data)),
      rank_(place.data_index),
      num_data_(place.num_data),
      tree_(sum_tree_of(config, place.num_data)),
      is_balanced_(config.data.balance) {
  check_batch(config.train, place, data);
  if (config.train.microbatch_sequences > 0 || config.train.world_invariant)
    micro_sequences_ = microbatch_sequences(config.train, num_data_);
  if (!is_balanced_) return;
  if (tree_) {
    throw Error(
        ErrorCode::kUsage,
        "[data] data.balance: got true with train.world_invariant, expected one of them: equal bits on any number "
        "of ranks need sequences in one order, and dealing depends on that number.");
  }
}

int64_t PackedBatches::consumed(int64_t step) const {
  return first_consumed_ + ramp_.consumed(step) - ramp_.consumed(first_step_);
}

void PackedBatches::continue_at(int64_t step, int64_t consumed) {
  first_step_ = step;
  first_consumed_ = consumed;
}

int64_t PackedBatches::num_targets(int64_t step) const {
  return num_targets_of(order_.sequences(consumed(step), ramp_.sequences(step)));
}

int64_t PackedBatches::num_targets_of(const std::vector<int64_t>& sequences) const {
  if (data_.is_of_pairs()) return static_cast<int64_t>(sequences.size());
  return std::max<int64_t>(1, data_.num_targets(sequences));
}

// Of those of a global batch.
int64_t PackedBatches::first_sequence(int64_t step, int64_t micro) const {
  const int64_t size = micro_sequences(step);
  return tree_ ? tree_->leaf_of(rank_, micro) * size : rank_ * rank_sequences(step) + micro * size;
}

int64_t PackedBatches::position(int64_t step, int64_t micro) const {
  return consumed(step) + first_sequence(step, micro);
}

PackedBatches::GlobalBatch PackedBatches::global_batch(const StepPlace& place) const {
  std::vector<int64_t> sequences = order_.sequences(place.consumed, ramp_.sequences(place.step));
  if (!is_balanced_) return {std::move(sequences), {}};
  std::vector<double> work;
  for (const int64_t sequence : sequences) work.push_back(data_.attention_work(sequence));
  GlobalBatch dealt;
  const DealShape shape{num_data_, num_microbatches(place.step), micro_sequences(place.step)};
  for (const int64_t index : deal_by_work(work, shape)) {
    dealt.sequences.push_back(sequences[static_cast<size_t>(index)]);
    dealt.places.push_back(place.consumed + index);
  }
  return dealt;
}

Batch PackedBatches::read_microbatch(const GlobalBatch& global_batch, int64_t step, int64_t micro) const {
  const auto part_of = [&](const std::vector<int64_t>& whole) {
    if (whole.empty()) return whole;
    const auto first = whole.begin() + first_sequence(step, micro);
    return std::vector<int64_t>(first, first + micro_sequences(step));
  };
  Batch batch = cut_sequences(make_batch(data_, part_of(global_batch.sequences)), pieces_.pieces(step));
  batch.places = part_of(global_batch.places);
  return batch;
}

Batch PackedBatches::microbatch(int64_t step, int64_t micro) const {
  return read_microbatch(global_batch(place_of(step)), step, micro);
}

StepBatches PackedBatches::read_step(const StepPlace& place) const {
  StepBatches step;
  const GlobalBatch whole = global_batch(place);
  step.num_targets = num_targets_of(whole.sequences);
  for (int64_t micro = 0; micro < num_microbatches(place.step); ++micro) {
    step.microbatches.push_back(read_microbatch(whole, place.step, micro));
  }
  return step;
}

}  // namespace fsdp::train
