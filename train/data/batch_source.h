#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/strategy/sum_order.h"
#include "train/axes/rank_place.h"
#include "train/config/batch_ramp.h"
#include "train/config/config.h"
#include "train/config/sequence_ramp.h"
#include "train/data/balance.h"
#include "train/data/batch.h"
#include "train/data/data_order.h"
#include "train/data/packed_split.h"

namespace fsdp::train {

// Where a trainer gets its batches. The global batch of a step does not depend on the number of ranks; each rank is
// given its part of it, cut into microbatches. In a step every rank has the same number of microbatches, if need be
// without targets.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int64_t num_microbatches(int64_t step) const = 0;
  // Predicted tokens of the global batch of `step`, or its pairs: what the loss is divided by. Never 0.
  virtual int64_t num_targets(int64_t step) const = 0;
  // Microbatch number `micro` of this rank.
  virtual Batch microbatch(int64_t step, int64_t micro) const = 0;
  // Place of that microbatch's first sequence in the endless row of sequences that training consumes.
  virtual int64_t position(int64_t step, int64_t micro) const = 0;
};

// What one rank works on in one step.
struct StepBatches {
  int64_t num_targets = 1;  // of the global batch, as BatchSource::num_targets()
  std::vector<Batch> microbatches;
};

// Which step, and where its data begin.
struct StepPlace {
  int64_t step = 0;
  int64_t consumed = 0;  // sequences before it

  bool operator==(const StepPlace&) const = default;
};

// A source whose steps can be read ahead, on any thread.
class StepSource : public BatchSource {
 public:
  // The data cursor: sequences consumed before `step`.
  virtual int64_t consumed(int64_t step) const = 0;
  // All batches of a step that starts there. Thread-safe; not touched by what moves the cursor.
  virtual StepBatches read_step(const StepPlace& place) const = 0;

  StepPlace place_of(int64_t step) const { return {step, consumed(step)}; }
};

// Can every rank have an equal part of each batch, and is there one? Throws Error(kUsage | kData) that names the fix.
void check_batch(const TrainConfig& config, const RankPlace& place, const PackedSplit& data);

// The shuffled sequences of a split, mixed by the weights of its sources: a rank has the contiguous part of each global
// batch that its place says, or the parts that a tree of sums gives it, or, with data.balance, those sequences of the
// batch that make the ranks' attention work equal. In the first steps batches may have fewer sequences (BatchRamp), and
// sequences may be cut into pieces (SequenceRamp).
class PackedBatches : public StepSource {
 public:
  // `data` must outlive this. Throws as check_batch() and sum_tree_of().
  PackedBatches(const Config& config, const RankPlace& place, const PackedSplit& data);

  int64_t num_microbatches(int64_t step) const override { return rank_sequences(step) / micro_sequences(step); }
  int64_t num_targets(int64_t step) const override;
  Batch microbatch(int64_t step, int64_t micro) const override;
  int64_t position(int64_t step, int64_t micro) const override;

  int64_t consumed(int64_t step) const override;
  StepBatches read_step(const StepPlace& place) const override;
  // From `step` on, go on after the first `consumed` sequences.
  void continue_at(int64_t step, int64_t consumed);

  // Of the global batch.
  int64_t num_sequences(int64_t step) const { return ramp_.sequences(step); }
  // Of the sequences consumed before `step`, over all ranks: a run that was resumed may have had other batches before,
  // which only the data cursor knows.
  int64_t tokens_before(int64_t step) const { return consumed(step) * data_.sequence_length(); }
  // All steps have the same.
  bool is_flat() const { return ramp_.is_flat(); }
  const DataOrder& order() const { return order_; }
  const PackedSplit& data() const { return data_; }

 private:
  // In the order in which ranks and their microbatches have parts of it.
  struct GlobalBatch {
    std::vector<int64_t> sequences;
    std::vector<int64_t> places;  // where they are in the row of sequences; empty: one after the other
  };
  GlobalBatch global_batch(const StepPlace& place) const;
  int64_t num_targets_of(const std::vector<int64_t>& sequences) const;
  Batch read_microbatch(const GlobalBatch& global_batch, int64_t step, int64_t micro) const;
  int64_t first_sequence(int64_t step, int64_t micro) const;
  int64_t rank_sequences(int64_t step) const { return ramp_.sequences(step) / num_data_; }
  int64_t micro_sequences(int64_t step) const { return micro_sequences_.value_or(rank_sequences(step)); }

  const PackedSplit& data_;
  BatchRamp ramp_;
  SequenceRamp pieces_;
  int64_t first_step_ = 0;
  int64_t first_consumed_ = 0;
  DataOrder order_;
  int64_t rank_, num_data_;                 // among those with batches of their own
  std::optional<int64_t> micro_sequences_;  // of each microbatch; none: all that a rank has in a step
  std::optional<SumTreeOrder> tree_;
  bool is_balanced_;
};

}  // namespace fsdp::train
