#include "plan/activations.h"

#include <algorithm>

#include "kernels/raw/rows/logit_limits.h"
#include "plan/axes.h"

namespace fsdp::plan {
namespace {

using models::DecoderConfig;
using models::ExpertsConfig;
using models::Recompute;

io::DType type_of_activations(const Setup& setup) { return setup.precision.param.value_or(io::DType::F32); }

// What a block keeps of one rank's tokens; `part` is what the rank has of its layers. Between layers a rank along `tp`
// has a part of the tokens, but keeps all that q, k, v, gate and up read.
int64_t kept_bytes(const DecoderConfig& part, int64_t layer, Recompute what, const Setup& setup) {
  const int64_t element = setup.activation_bytes(), tokens = setup.rank_tokens(), hidden = part.hidden_size;
  int64_t bytes = models::kept_bytes_per_token(part, layer, what, element) * tokens;
  const int64_t cut_between_layers = (what == Recompute::kBlock ? 1 : 2) * tokens * hidden * element;
  bytes -= cut_between_layers - cut_between_layers / setup.tensor;
  if (what != Recompute::kBlock && setup.tensor > 1 && part.has_experts(layer)) {
    // Each rank has its own tokens' rows, and where nothing else is gathered behind attention, of a norm's result too.
    DecoderConfig without = part;
    without.experts.per_token = 0;
    int64_t of_tokens = (models::kept_bytes_per_token(part, layer, what, element) -
                         models::kept_bytes_per_token(without, layer, what, element)) *
                        tokens;
    if (!has_cut_mlp(part, layer)) of_tokens += tokens * hidden * element;
    bytes -= of_tokens - of_tokens / setup.tensor;
  }
  if (setup.context == 1 || what == Recompute::kBlock || takes_ring(part, setup)) return bytes;
  // Keys and values of all tokens, for each head of the queries; what attention gives, and its two chunks put together.
  const int64_t queries = part.num_attention_heads * part.head_dim, keys = part.num_key_value_heads * part.head_dim;
  return bytes + (2 * setup.work.microbatch_tokens() * queries + tokens * (queries - 2 * keys)) * element;
}

// Between the parts of a split backward (fsdp/pipeline/split_backward.h): what products and norms read and gradients of
// what they gave. Those of q, k, v, gate and up are as large as what attention and the gated product kept, which is no
// more needed; those of both norms, o and down come beside it, and those of the norms of heads.
int64_t bytes_for_weights(const DecoderConfig& part, int64_t layer, const Setup& setup) {
  const int64_t tokens = setup.rank_tokens(), heads = part.num_attention_heads;
  const int64_t of_heads = part.has_qk_norm ? (heads + part.num_key_value_heads) * part.head_dim : 0;
  const int64_t gradients = 4 * part.hidden_size + of_heads;
  return kept_bytes(part, layer, Recompute::kNone, setup) +
         tokens * (gradients * setup.activation_bytes() - heads * static_cast<int64_t>(sizeof(float)));
}

// One for all layers: of a rank's tokens and those of whole sequences. A ring has none.
int64_t mask_bytes(const DecoderConfig& part, const Setup& setup) {
  if (setup.context == 1 || takes_ring(part, setup)) return 0;
  return setup.rank_tokens() * setup.work.sequence_length * setup.activation_bytes();
}

// What the backward of ring_attention() holds beside what it was given, of a token: queries, their gradients and those
// of the output in fp32; its own block of keys and values and two that travel; three blocks of their gradients. And the
// scores of some queries with half a block, which are there about three times.
int64_t ring_bytes(const DecoderConfig& part, const Setup& setup) {
  const int64_t queries = part.num_attention_heads * part.head_dim, keys = part.num_key_value_heads * part.head_dim;
  const int64_t wide = std::max<int64_t>(4, setup.activation_bytes()), own = setup.work.sequence_length / setup.context;
  const int64_t scores = setup.work.microbatch_sequences * part.num_attention_heads *
                         std::min(parallel::kQueriesAtATime, own / 2) * (own / 2);
  return setup.rank_tokens() * (3 * queries * wide + 2 * keys * 3 * (setup.activation_bytes() + wide)) +
         3 * scores * wide;
}

// Gradients of activations that are there at once around attention, of a token.
int64_t gradients_around_attention(const DecoderConfig& config) {
  return config.hidden_size + 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim;
}

// Those that are there at once in a block's backward: those of the three parts of the gated product, or around
// attention. An estimate: tests/plan/activations_test.cpp shows how far real steps are from it.
int64_t gradient_elements_per_token(const DecoderConfig& config, int64_t layer, int64_t tensor) {
  const ExpertsConfig& experts = config.experts;
  const int64_t inner = config.has_experts(layer)
                            ? experts.per_token * experts.inner_size / tensor + experts.shared_inner_size
                            : config.intermediate_size;
  return std::max(3 * inner, gradients_around_attention(config));
}

// The largest weight of a block that is decoded for its product, in the type that is computed with.
int64_t decoded_bytes(const PlannedUnit& block, int64_t element) {
  int64_t most = 0;
  for (const PlannedParameter& parameter : block.parameters) most = std::max(most, parameter.coded);
  return most * element;
}

// The head's weight, if it is codes.
int64_t decoded_head_bytes(const PlannedModel& model, int64_t element) {
  const std::vector<PlannedParameter>& root = model.root.parameters;
  const size_t first = model.head == TiedHead::kYes ? 0 : model.num_first;
  int64_t coded = 0;
  for (size_t i = first; i < root.size(); ++i) coded = std::max(coded, root[i].coded);
  return coded * element;
}

struct LossBytes {
  int64_t kept, working;
};

// kernels::linear_cross_entropy() on the CPU.
LossBytes loss_on_cpu(int64_t tokens, int64_t vocab, int64_t hidden, io::DType type) {
  const auto element = static_cast<int64_t>(io::item_size(type));
  const int64_t logits = tokens * vocab * element, rows = tokens * hidden * element;
  const int64_t chunk = kernels::logit_rows_at_a_time(tokens, vocab * element) * vocab * element;
  if (logits <= kernels::kMostLogitBytesKept) return {logits, logits + rows};
  const bool keeps_gradients = type != io::DType::F16 && vocab * hidden <= kernels::kMostGradientKept;
  if (keeps_gradients) return {rows + vocab * hidden * 4, 2 * chunk};
  return {0, 2 * chunk + rows};
}

// kernels::nf4_linear_cross_entropy(), whose `head` bytes are decoded while it runs.
LossBytes loss_over_codes(int64_t tokens, int64_t vocab, int64_t hidden, int64_t element, int64_t head) {
  const int64_t chunk = kernels::logit_rows_at_a_time(tokens, vocab * element) * vocab * element;
  return {tokens * hidden * element, 2 * chunk + head};
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

// fsdp::parallel::vocab_cross_entropy(): fp32 probabilities, and what they are made of.
LossBytes loss_over_ranks(int64_t tokens, int64_t vocab, int64_t hidden, io::DType type) {
  const auto element = static_cast<int64_t>(io::item_size(type));
  const int64_t logits = tokens * vocab;
  return {logits * 4 + tokens * hidden * element, logits * (element + 8)};
}

}  // namespace

Activations plan_activations(const PlannedModel& model, const Setup& setup) {
  Activations result;
  result.kept.assign(model.blocks.size(), 0);
  result.working.assign(model.blocks.size(), 0);
  result.kept_for_weights.assign(model.blocks.size(), 0);
  if (!model.decoder) return result;
  const DecoderConfig config = part_of_rank(*model.decoder, setup.tensor);
  const io::DType type = type_of_activations(setup);
  const int64_t element = setup.activation_bytes(), tokens = setup.rank_tokens();
  const bool is_ring = setup.context > 1 && takes_ring(config, setup);
  const int64_t hidden = tokens / setup.tensor * config.hidden_size * element;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const bool chosen = static_cast<int64_t>(i) % setup.work.recompute_every == 0;
    const Recompute what = chosen ? setup.work.recompute : Recompute::kNone;
    const auto layer = static_cast<int64_t>(i);
    result.kept[i] = kept_bytes(config, layer, what, setup);
    const int64_t gradients = gradient_elements_per_token(config, layer, setup.tensor) * element * tokens;
    const int64_t around_attention =
        is_ring ? gradients_around_attention(config) * element * tokens + ring_bytes(config, setup) : 0;
    result.working[i] = kept_bytes(config, layer, Recompute::kNone, setup) - result.kept[i] +
                        std::max(gradients, around_attention) + decoded_bytes(model.blocks[i], element);
    result.kept_for_weights[i] = bytes_for_weights(config, layer, setup);
    if (chosen && setup.work.block_inputs == models::BlockInputs::kOnHost) {
      result.kept[i] -= hidden;
      result.working[i] += 2 * hidden;  // that of this block, and one on its way
    }
  }
  const int64_t tables = 2 * setup.work.sequence_length * config.rotary_dim() * element + mask_bytes(config, setup);
  result.border_kept = hidden + tables;
  const bool on_gpu = setup.transport == Transport::kNccl;
  const auto loss_of = setup.tensor > 1 ? loss_over_ranks : on_gpu ? loss_on_gpu : loss_on_cpu;
  LossBytes loss = loss_of(tokens, config.vocab_size, config.hidden_size, type);
  if (const int64_t head = decoded_head_bytes(model, element); head > 0 && on_gpu) {
    loss.working += head;
  } else if (head > 0) {
    loss = loss_over_codes(tokens, config.vocab_size, config.hidden_size, element, head);
  }
  result.outer_kept = 2 * hidden + tokens * 4 + tables;
  result.loss_kept = loss.kept + tokens * 4;
  result.loss_working = loss.working;
  // Over ranks the head is a product by itself.
  result.loss_kept_for_weights =
      setup.tensor > 1 ? tokens * (config.vocab_size + config.hidden_size) * element : result.loss_kept;
  const bool is_tied = setup.pipeline == 1 && model.head == TiedHead::kYes;
  if (is_tied && model.root.parameters.front().trains)
    result.tied_gradient = config.vocab_size * config.hidden_size * element;
  return result;
}

}  // namespace fsdp::plan
