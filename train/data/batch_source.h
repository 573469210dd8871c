#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/strategy/sum_order.h"
#include "train/axes/rank_place.h"
#include "train/config/config.h"
#include "train/data/balance.h"
#include "train/data/batch.h"
#include "train/data/data_order.h"
#include "train/data/packed_split.h"

namespace fsdp::train {

// Where a trainer gets its batches. The global batch of a step does not depend on the number of ranks; each rank is
// given its part of it, cut into microbatches. Every rank has the same number of microbatches, if need be without
// targets.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int64_t num_microbatches() const = 0;
  // Predicted tokens of the global batch of `step`: what the loss is divided by. Never 0.
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

// A source whose steps can be read ahead, on any thread.
class StepSource : public BatchSource {
 public:
  // The data cursor: sequences consumed before `step`.
  virtual int64_t consumed(int64_t step) const = 0;
  // All batches of the step that starts there. Thread-safe; not touched by what moves the cursor.
  virtual StepBatches read_step(int64_t consumed) const = 0;
};

// Can every rank have an equal part of each batch, and is there one? Throws Error(kUsage | kData) that names the fix.
void check_batch(const TrainConfig& config, const RankPlace& place, const PackedSplit& data);

// The shuffled sequences of a split, mixed by the weights of its sources: a rank has the contiguous part of each global
// batch that its place says, or the parts that a tree of sums gives it, or, with data.balance, those sequences of the
// batch that make the ranks' attention work equal.
class PackedBatches : public StepSource {
 public:
  // `data` must outlive this. Throws as check_batch() and sum_tree_of().
  PackedBatches(const Config& config, const RankPlace& place, const PackedSplit& data);

  int64_t num_microbatches() const override { return rank_sequences_ / micro_sequences_; }
  int64_t num_targets(int64_t step) const override;
  Batch microbatch(int64_t step, int64_t micro) const override;
  int64_t position(int64_t step, int64_t micro) const override;

  int64_t consumed(int64_t step) const override;
  StepBatches read_step(int64_t consumed) const override;
  // From `step` on, go on after the first `consumed` sequences.
  void continue_at(int64_t step, int64_t consumed);

  const DataOrder& order() const { return order_; }
  const PackedSplit& data() const { return data_; }

 private:
  // In the order in which ranks and their microbatches have parts of it.
  struct GlobalBatch {
    std::vector<int64_t> sequences;
    std::vector<int64_t> places;  // where they are in the row of sequences; empty: one after the other
  };
  GlobalBatch global_batch(int64_t consumed) const;
  Batch read_microbatch(const GlobalBatch& global_batch, int64_t micro) const;
  int64_t first_sequence(int64_t micro) const;

  const PackedSplit& data_;
  int64_t batch_sequences_;
  int64_t first_step_ = 0;
  int64_t first_consumed_ = 0;
  DataOrder order_;
  int64_t rank_;
  int64_t rank_sequences_;   // of each global batch
  int64_t micro_sequences_;  // of each microbatch
  std::optional<SumTreeOrder> tree_;
  std::optional<DealShape> balanced_;
};

}  // namespace fsdp::train
