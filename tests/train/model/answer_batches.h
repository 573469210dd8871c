// Random tokens of which only the ends of rows are predicted, like answers in chats: rows have unequally many targets.
#pragma once

#include <torch/torch.h>

#include "train/data/batch_source.h"

namespace fsdp::testing {

class AnswerBatches : public train::BatchSource {
 public:
  static constexpr int64_t kRows = 8;  // of a global batch
  static constexpr int64_t kLength = 12;

  // Microbatches of `micro_rows` rows for rank `rank` of `ranks`.
  AnswerBatches(int rank, int ranks, int64_t micro_rows, int64_t vocab_size, uint64_t seed)
      : rank_rows_(kRows / ranks),
        micro_rows_(micro_rows),
        first_(rank * rank_rows_),
        vocab_(vocab_size),
        seed_(seed) {}

  int64_t num_microbatches(int64_t) const override { return rank_rows_ / micro_rows_; }

  int64_t num_targets(int64_t step) const override {
    return rows(step, 0, kRows).targets_N.ne(train::kNoTarget).sum().item<int64_t>();
  }

  train::Batch microbatch(int64_t step, int64_t micro) const override {
    return rows(step, first_ + micro * micro_rows_, micro_rows_);
  }

  int64_t position(int64_t step, int64_t micro) const override { return step * kRows + first_ + micro * micro_rows_; }

  // Rows [begin, begin + count) of the global batch. Row r predicts its last 1 + 3 r % 11 tokens, and row 5 none.
  train::Batch rows(int64_t step, int64_t begin, int64_t count) const {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_ + static_cast<uint64_t>(step));
    const at::Tensor tokens = at::randint(3, vocab_, {kRows, kLength + 1}, generator, at::kLong);
    at::Tensor targets = tokens.slice(1, 1).clone();
    for (int64_t row = 0; row < kRows; ++row) {
      targets[row].slice(0, 0, row == 5 ? kLength : kLength - 1 - 3 * row % 11).fill_(train::kNoTarget);
    }
    train::Batch batch;
    batch.input_ids_BT = tokens.slice(1, 0, kLength).narrow(0, begin, count).contiguous();
    batch.targets_N = targets.narrow(0, begin, count).flatten().contiguous();
    return batch;
  }

 private:
  int64_t rank_rows_, micro_rows_, first_, vocab_;
  uint64_t seed_;
};

}  // namespace fsdp::testing
