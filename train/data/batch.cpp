#include "train/data/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/operators/cross_entropy.h"

namespace fsdp::train {

static_assert(kNoTarget == kernels::kIgnoreIndex);

Batch make_batch(const PackedSplit& split, std::span<const int64_t> sequences) {
  const int64_t length = split.sequence_length();
  const auto rows = static_cast<int64_t>(std::max<size_t>(1, sequences.size()));
  Batch batch;
  batch.input_ids_BT = at::empty({rows, length}, at::kLong);
  batch.targets_N = at::empty({rows * length}, at::kLong);
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < rows; ++row) {
    const Example example = split.read(sequences.empty() ? 0 : sequences[static_cast<size_t>(row)]);
    std::copy(example.inputs.begin(), example.inputs.end(),
              batch.input_ids_BT.mutable_data_ptr<int64_t>() + row * length);
    std::copy(example.targets.begin(), example.targets.end(),
              batch.targets_N.mutable_data_ptr<int64_t>() + row * length);
    if (split.is_of_pairs() && !sequences.empty())
      batch.pairs.push_back({sequences[static_cast<size_t>(row)], example.chosen_end, example.pair_end});
    for (const int64_t start : example.segment_starts) {
      starts.push_back(static_cast<int32_t>(row * length + start));
    }
  }
  if (sequences.empty()) {
    batch.targets_N.fill_(kNoTarget);
  }
  starts.push_back(static_cast<int32_t>(rows * length));
  batch.sequence.cu_seqlens = at::tensor(starts, at::kInt);
  return batch;
}

Batch cut_sequences(Batch batch, int64_t pieces) {
  const int64_t rows = batch.input_ids_BT.size(0), length = batch.input_ids_BT.size(1);
  if (pieces <= 1) return batch;
  const int32_t* const starts = batch.sequence.cu_seqlens.const_data_ptr<int32_t>();
  std::set<int32_t> all(starts, starts + batch.sequence.cu_seqlens.numel());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t piece = 1; piece < pieces; ++piece)
      all.insert(static_cast<int32_t>(row * length + piece * length / pieces));
  }
  batch.sequence.cu_seqlens = at::tensor(std::vector<int32_t>(all.begin(), all.end()), at::kInt);
  return batch;
}

Batch on_device(Batch batch, c10::Device device) {
  if (device.is_cpu()) return batch;
  for (at::Tensor* tensor : {&batch.input_ids_BT, &batch.targets_N}) {
    // Only from pinned memory a copy to a GPU is work of its stream.
    const at::Tensor source = device.is_cuda() ? tensor->pin_memory() : *tensor;
    *tensor = source.to(device, /*non_blocking=*/true);
  }
  return batch;
}

Batch part_of_sequences(Batch batch, const RankPlace& place) {
  if (place.num_context == 1) return batch;
  const auto own = [&](const at::Tensor& x_BT) {
    return parallel::zigzag_part(x_BT, 1, place.context_index, place.num_context);
  };
  batch.targets_N = own(batch.targets_N.view(batch.input_ids_BT.sizes())).flatten();
  batch.input_ids_BT = own(batch.input_ids_BT);
  return batch;
}

Part part_of(int64_t count, int rank, int size) { return {count * rank / size, count * (rank + 1) / size}; }

at::Tensor summed_loss(models::Decoder& model, const Batch& batch, const kernels::LossTerms& terms) {
  return model->loss(batch.input_ids_BT, batch.targets_N, batch.sequence, kernels::Reduction::kSum, terms);
}

}  // namespace fsdp::train
