#include "train/evaluate/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "train/axes/decoder_pipeline.h"
#include "train/config/sum_tree.h"
#include "train/data/batch.h"
#include "train/data/data_tokenizer.h"

namespace fsdp::train {

namespace {

bool any_rank(const World& world, bool flag) {
  return sum_over_ranks(world, at::full({1}, flag ? 1 : 0, at::kLong)).item<int64_t>() > 0;
}

// Undefined on the ranks of a pipeline's earlier stages.
at::Tensor loss_of(ShardedModel& model, const Batch& batch) {
  if (!model.pipeline) return summed_loss(model.decoder, batch);
  return model.pipeline->forward({batch.input_ids_BT, batch.sequence}, [&](const at::Tensor& hidden_BTE) {
    return model.decoder->loss_of(hidden_BTE, batch.targets_N, kernels::Reduction::kSum);
  });
}

// The forwards that sequences of one batch take, numbered over all ranks that have batches of their own.
class Forwards {
 public:
  // Of `size` sequences each; 0: one of each rank, with its part.
  Forwards(int64_t num_sequences, int64_t size, const RankPlace& place)
      : num_sequences_(num_sequences),
        size_(size),
        number_(size > 0 ? (num_sequences + size - 1) / size : place.num_data),
        mine_(part_of(number_, place.data_index, place.num_data)),
        rounds_((number_ + place.num_data - 1) / place.num_data) {}

  int64_t number() const { return number_; }
  // Each rank has one in each round, if need be without sequences.
  int64_t rounds() const { return rounds_; }
  // The number of this rank's; nothing where others have one more.
  std::optional<int64_t> of_round(int64_t round) const {
    return mine_.begin + round < mine_.end ? std::optional(mine_.begin + round) : std::nullopt;
  }
  std::vector<int64_t> sequences(int64_t forward) const {
    const Part part = size_ > 0 ? Part{forward * size_, std::min(num_sequences_, (forward + 1) * size_)}
                                : part_of(num_sequences_, static_cast<int>(forward), static_cast<int>(number_));
    std::vector<int64_t> sequences(static_cast<size_t>(part.end - part.begin));
    std::iota(sequences.begin(), sequences.end(), part.begin);
    return sequences;
  }

 private:
  int64_t num_sequences_, size_, number_;
  Part mine_;
  int64_t rounds_;
};

HeldoutLoss evaluate_pairs(ShardedModel& model, const World& world, const PackedSplit& split,
                           const PreferenceObjective& objective, int64_t num_pairs) {
  const PreferenceSums sums = objective.evaluate(model, world, split, num_pairs);
  return {.nats = sums.loss,
          .targets = static_cast<int64_t>(sums.pairs),
          .preference = PreferenceFigures{sums.margin / sums.pairs, sums.correct / sums.pairs}};
}

}  // namespace

std::optional<HeldoutLoss> evaluate(ShardedModel& model, const World& world, const PackedSplit& split,
                                    const TrainConfig& config, int64_t num_batches,
                                    const std::function<bool()>& stop_asked, const tokenizer::Tokenizer* tokenizer,
                                    const PreferenceObjective* objective) {
  if (objective != nullptr)
    return evaluate_pairs(model, world, split, *objective, num_batches * config.batch_sequences);
  const ForwardOnly scope(model.root);
  const c10::Device device = computing_device(model.decoder);
  const int64_t batch_sequences = config.batch_sequences;
  const int64_t forward_sequences = config.world_invariant ? microbatch_sequences(config, model.place.num_data) : 0;
  const int64_t limit = num_batches > 0 ? num_batches * batch_sequences : split.num_sequences();
  const int64_t num_sequences = std::min(limit, split.num_sequences());
  double num_targets = 0, num_bytes = 0;
  std::vector<double> losses;  // of all forwards of all ranks, each known to one
  for (int64_t first = 0; first < num_sequences; first += batch_sequences) {
    if (any_rank(world, stop_asked())) return std::nullopt;
    const Forwards forwards(std::min(batch_sequences, num_sequences - first), forward_sequences, model.place);
    const size_t before = losses.size();
    losses.resize(before + static_cast<size_t>(forwards.number()));
    for (int64_t round = 0; round < forwards.rounds(); ++round) {
      const std::optional<int64_t> forward = forwards.of_round(round);
      std::vector<int64_t> sequences = forward ? forwards.sequences(*forward) : std::vector<int64_t>();
      for (int64_t& sequence : sequences) sequence += first;
      const Batch batch = make_batch(split, sequences);
      const at::Tensor loss = loss_of(model, on_device(part_of_sequences(batch, model.place), device));
      if (forward && model.place.counts_losses) losses[before + static_cast<size_t>(*forward)] = loss.item<double>();
      if (!model.place.counts_batches) continue;
      const at::Tensor& targets = batch.targets_N;
      num_targets += targets.ne(kNoTarget).sum().item<double>();
      if (tokenizer == nullptr) continue;
      num_bytes += static_cast<double>(count_text_bytes(*tokenizer, targets.view({-1, split.sequence_length()})));
    }
  }
  losses.insert(losses.end(), {num_targets, num_bytes});
  const at::Tensor sums = sum_over_ranks(world, at::tensor(losses, at::kDouble));
  const double* total = sums.const_data_ptr<double>();
  const double nats = std::accumulate(total, total + losses.size() - 2, 0.0);
  return HeldoutLoss{nats, static_cast<int64_t>(total[losses.size() - 2]),
                     static_cast<int64_t>(total[losses.size() - 1])};
}

}  // namespace fsdp::train
