#include "train/evaluate/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "train/data/batch.h"
#include "train/data/data_tokenizer.h"

namespace fsdp::train {

namespace {

bool any_rank(const World& world, bool flag) {
  return sum_over_ranks(world, at::full({1}, flag ? 1 : 0, at::kLong)).item<int64_t>() > 0;
}

}  // namespace

std::optional<HeldoutLoss> evaluate(ShardedModel& model, const World& world, const PackedSplit& split,
                                    int64_t batch_sequences, int64_t num_batches,
                                    const std::function<bool()>& stop_asked, const tokenizer::Tokenizer* tokenizer) {
  const ForwardOnly scope(model.root);
  const c10::Device device = parameters(*model.decoder).front().device();
  const int64_t limit = num_batches > 0 ? num_batches * batch_sequences : split.num_sequences();
  const int64_t num_sequences = std::min(limit, split.num_sequences());
  at::Tensor sums = at::zeros({3}, at::kDouble);
  double* sum = sums.mutable_data_ptr<double>();
  for (int64_t first = 0; first < num_sequences; first += batch_sequences) {
    if (any_rank(world, stop_asked())) return std::nullopt;
    const int64_t count = std::min(batch_sequences, num_sequences - first);
    const Part part = part_of(count, model.place.data_index, model.place.num_data);
    std::vector<int64_t> sequences(static_cast<size_t>(part.end - part.begin));
    std::iota(sequences.begin(), sequences.end(), first + part.begin);
    const Batch batch = make_batch(split, sequences);
    const auto loss =
        summed_loss(model.decoder, on_device(part_of_sequences(batch, model.place), device)).item<double>();
    if (model.place.counts_losses) sum[0] += loss;
    if (!model.place.counts_batches) continue;
    const at::Tensor& targets = batch.targets_N;
    sum[1] += targets.ne(kNoTarget).sum().item<double>();
    if (tokenizer != nullptr) {
      const at::Tensor targets_BT = targets.view({-1, split.sequence_length()});
      sum[2] += static_cast<double>(count_text_bytes(*tokenizer, targets_BT));
    }
  }
  sums = sum_over_ranks(world, sums);
  const double* total = sums.const_data_ptr<double>();
  return HeldoutLoss{total[0], static_cast<int64_t>(total[1]), static_cast<int64_t>(total[2])};
}

}  // namespace fsdp::train
