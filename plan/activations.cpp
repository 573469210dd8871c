#include "plan/activations.h"

#include <algorithm>

#include "kernels/raw/rows/logit_limits.h"

namespace fsdp::plan {
namespace {

using models::DecoderConfig;
using models::Recompute;

io::DType type_of_activations(const Setup& setup) { return setup.precision.param.value_or(io::DType::F32); }

// Gradients of activations that are there at once in a block's backward: those of the three parts of the gated product,
// or those around attention. An estimate: tests/plan/activations_test.cpp shows how far real steps are from it.
int64_t gradient_elements_per_token(const DecoderConfig& config) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  return std::max(3 * inner, hidden + 2 * queries + 2 * keys);
}

struct LossBytes {
  int64_t kept, working;
};

// kernels::linear_cross_entropy() on the CPU.
LossBytes loss_on_cpu(int64_t tokens, int64_t vocab, int64_t hidden, io::DType type) {
  const auto element = static_cast<int64_t>(io::item_size(type));
  const int64_t logits = tokens * vocab * element, rows = tokens * hidden * element;
  const int64_t chunk = std::min(logits, std::max(kernels::kLogitBytesAtATime, vocab * element));
  if (logits <= kernels::kMostLogitBytesKept) return {logits, logits + rows};
  const bool keeps_gradients = type != io::DType::F16 && vocab * hidden <= kernels::kMostGradientKept;
  if (keeps_gradients) return {rows + vocab * hidden * 4, 2 * chunk};
  return {0, 2 * chunk + rows};
}

// Whole logits, or kernels/cuda/linear_cross_entropy_cuda.cpp.
LossBytes loss_on_gpu(int64_t tokens, int64_t vocab, int64_t hidden, io::DType type) {
  const auto element = static_cast<int64_t>(io::item_size(type));
  const int64_t logits = tokens * vocab * element, rows = tokens * hidden * element;
  if (logits <= models::kMostWholeLogitBytes) return {logits, logits + rows};
  const int64_t chunks = (logits + kernels::kDeviceLogitBytesAtATime - 1) / kernels::kDeviceLogitBytesAtATime;
  const int64_t sum = vocab * hidden * (chunks > kernels::kMostChunksInNarrowSum ? 4 : element);
  return {rows + sum, (logits + chunks - 1) / chunks};
}

}  // namespace

Activations plan_activations(const PlannedModel& model, const Setup& setup) {
  Activations result;
  result.kept.assign(model.blocks.size(), 0);
  result.working.assign(model.blocks.size(), 0);
  if (!model.decoder) return result;
  const DecoderConfig& config = *model.decoder;
  const io::DType type = type_of_activations(setup);
  const int64_t element = static_cast<int64_t>(io::item_size(type)), tokens = setup.work.microbatch_tokens();
  const int64_t all = models::kept_bytes_per_token(config, Recompute::kNone, element) * tokens;
  const int64_t gradients = gradient_elements_per_token(config) * element * tokens;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const bool chosen = static_cast<int64_t>(i) % setup.work.recompute_every == 0;
    const Recompute what = chosen ? setup.work.recompute : Recompute::kNone;
    result.kept[i] = models::kept_bytes_per_token(config, what, element) * tokens;
    result.working[i] = all - result.kept[i] + gradients;
  }
  const bool on_gpu = setup.transport == Transport::kNccl;
  const LossBytes loss = (on_gpu ? loss_on_gpu : loss_on_cpu)(tokens, config.vocab_size, config.hidden_size, type);
  result.outer_kept = 2 * tokens * config.hidden_size * element + tokens * 4 +
                      2 * setup.work.sequence_length * config.head_dim * element;
  result.loss_kept = loss.kept + tokens * 4;
  result.loss_working = loss.working;
  if (model.head == TiedHead::kYes && model.root.parameters.front().trains)
    result.tied_gradient = config.vocab_size * config.hidden_size * element;
  return result;
}

}  // namespace fsdp::plan
