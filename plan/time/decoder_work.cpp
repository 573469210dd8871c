#include "plan/time/decoder_work.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "models/config/axis_calls.h"

namespace fsdp::plan::time {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

// A matrix [out, in] of a block, used once for each token.
struct Matrix {
  int64_t out, in;
};

// Of a sequence whose token i sees min(i + 1, window) tokens.
double mean_tokens_seen(int64_t length, int64_t window) {
  if (window == 0 || window >= length) return (real(length) + 1) / 2;
  return (real(window) * (real(window) + 1) / 2 + real(length - window) * real(window)) / real(length);
}

constexpr int64_t kRouterOperators = 16;  // choosing experts, and watching how even it is
constexpr double kMaskBytes = 40;         // that making a mask reads and writes for each of its entries

// Elements that are read and written for each token, by what is not a product and not attention.
struct Elements {
  double forward, backward;
};

class DecoderWorkMaker {
 public:
  DecoderWorkMaker(const DecoderShape& shape, const DecoderSetup& setup)
      : shape_(shape),
        setup_(setup),
        tokens_(static_cast<int64_t>(setup.tokens())),
        hidden_(shape.hidden_size),
        query_(shape.num_heads * shape.head_dim),
        key_(shape.num_key_heads * shape.head_dim) {}

  StepWork make() const {
    StepWork work;
    work.dtype = setup_.dtype;
    work.microbatches = setup_.microbatches;
    work.strategy = setup_.strategy;
    work.shard_ranks = setup_.shard_ranks;
    work.replica_ranks = setup_.replica_ranks;
    work.ranks_per_node = setup_.ranks_per_node;
    work.schedule = setup_.schedule;
    const int root = static_cast<int>(shape_.num_layers);
    work.passages.push_back(embedding());
    for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
      add_unit(work, "layers." + std::to_string(layer), root, layer_parameters());
      work.passages.push_back(block(layer));
      work.passages.back().unit = static_cast<int>(layer);
      if (!spreads_experts(layer)) continue;
      work.passages.push_back(passage_of_experts(layer));
      work.passages.back().unit = static_cast<int>(layer);
    }
    add_unit(work, "root", -1, root_parameters());
    work.passages.push_back(head());
    work.passages.front().unit = work.passages.back().unit = root;
    work.optimizer_bytes = setup_.optimizer_bytes * real(shape_.num_parameters()) / optimizer_ranks();
    work.model_flops = model_flops_per_token(shape_, setup_.sequence_length) * setup_.tokens() * setup_.microbatches;
    return work;
  }

 private:
  int64_t layer_parameters() const { return shape_.layer_parameters(); }
  int64_t root_parameters() const { return shape_.num_parameters() - shape_.num_layers * layer_parameters(); }
  double element() const { return real(element_bytes(setup_.dtype)); }

  int optimizer_ranks() const {
    const StrategyTraits strategy = traits(setup_.strategy);
    if (!strategy.shards_main_weight) return 1;
    return setup_.shard_ranks * (strategy.shards_over_replicas ? setup_.replica_ranks : 1);
  }

  void add_unit(StepWork& work, const std::string& name, int parent, int64_t parameters) const {
    work.units.push_back({name, parent, parameters * setup_.gather_bytes, parameters * setup_.reduce_bytes});
  }

  bool copies() const { return setup_.shard_ranks > 1; }

  // A gather's copies, and in the backward a reduction's too.
  void add_copies(Passage& passage, int64_t parameters) const {
    if (!copies()) return;
    passage.forward.bytes += setup_.gather_copy_bytes * real(parameters);
    const bool gathers_again = traits(setup_.strategy).gather == GatherTiming::kPerForwardAndBackward;
    passage.backward.bytes +=
        ((gathers_again ? setup_.gather_copy_bytes : 0) + setup_.reduce_copy_bytes) * real(parameters);
  }

  static void add_forward(Work& work, int64_t tokens, const Matrix& matrix, int64_t count = 1) {
    work.products.push_back({tokens, matrix.out, matrix.in, count});
  }
  static void add_backward(Work& work, int64_t tokens, const Matrix& matrix, int64_t count = 1) {
    work.products.push_back({tokens, matrix.in, matrix.out, count});  // of the input
    work.products.push_back({matrix.out, matrix.in, tokens, count, ProductOf::kWeightGradient});
  }

  bool has_experts(int64_t layer) const {
    const std::vector<bool>& dense = shape_.experts.dense_layers;
    return shape_.experts.count > 0 && (dense.empty() || !dense.at(static_cast<size_t>(layer)));
  }
  bool spreads_experts(int64_t layer) const {
    return (setup_.expert_ranks > 1 || setup_.tensor_ranks > 1) && has_experts(layer);
  }
  int64_t own_tokens() const { return std::max<int64_t>(1, tokens_ / setup_.tensor_ranks); }

  // Rows travel to the experts of this rank, each of which gets as many, and back. Ranks wait for the busiest one.
  Passage passage_of_experts(int64_t layer) const {
    Passage passage;
    const models::ExpertsConfig& experts = shape_.experts;
    const int64_t own = experts.count / setup_.expert_ranks;
    const auto rows = std::llround(real(own_tokens() * experts.per_token) * setup_.busiest_experts);
    const int64_t of_each = std::max<int64_t>(1, rows / own);
    for (const Matrix& matrix : {Matrix{2 * experts.inner_size, hidden_}, Matrix{hidden_, experts.inner_size}}) {
      add_forward(passage.forward, of_each, matrix, own);
      add_backward(passage.backward, of_each, matrix, own);
    }
    add_rows_of_experts(passage, real(rows) * element(), own);
    passage.forward.expert_calls = passage.backward.expert_calls =
        setup_.expert_ranks > 1 ? models::kExpertCallsOfBlock : 0;
    if (is_recomputed(layer) && setup_.recompute == Recompute::kBlock) passage.backward += passage.forward;
    return passage;
  }

  // Rows are put in order on both ways, and added up for each token: docs/plan_time.md counts it.
  void add_rows_of_experts(Passage& passage, double row_bytes, int64_t own) const {
    const double d = real(hidden_), f = real(shape_.experts.inner_size);
    if (setup_.beside_calls == BesideCalls::kNothing) {
      passage.forward.bytes = (5 * d + 3 * f) * row_bytes;
      passage.backward.bytes = (10 * d + 5 * f) * row_bytes;
      passage.forward.kernels = 6;
      passage.backward.kernels = 12;
      return;
    }
    const bool travels = setup_.expert_ranks > 1;  // then rows are put in order by rank and by expert
    passage.forward.bytes = ((travels ? 14 : 10) * d + 7 * f) * row_bytes;
    passage.backward.bytes =
        ((travels ? 24 : 16) * d + 11 * f) * row_bytes + 12 * real(own) * d * f * real(element_bytes(setup_.dtype));
    passage.forward.kernels = kRouterOperators + (travels ? 34 : 16) + 4 * own;
    passage.backward.kernels = kRouterOperators + (travels ? 36 : 24) + 8 * own;
    passage.forward.small_calls = travels ? 1 : 0;  // how many rows come
  }

  std::vector<Matrix> attention_matrices() const {
    const models::LatentConfig& latent = shape_.latent;
    if (latent.rank == 0) return {{query_, hidden_}, {key_, hidden_}, {key_, hidden_}, {hidden_, query_}};
    std::vector<Matrix> all = {{latent.rank + latent.rope_dim, hidden_},
                               {shape_.num_heads * (shape_.head_dim - latent.rope_dim + latent.value_dim), latent.rank},
                               {hidden_, shape_.num_heads * latent.value_dim}};
    if (latent.query_rank == 0) {
      all.push_back({query_, hidden_});
    } else {
      all.insert(all.end(), {{latent.query_rank, hidden_}, {query_, latent.query_rank}});
    }
    return all;
  }

  // But for those of experts and their router, which see a rank's own tokens.
  std::vector<Matrix> matrices(int64_t layer) const {
    std::vector<Matrix> all = attention_matrices();
    if (has_experts(layer)) {
      const int64_t shared = shape_.experts.shared_inner_size;
      if (shared > 0) all.insert(all.end(), {{shared, hidden_}, {shared, hidden_}, {hidden_, shared}});
      return all;
    }
    all.insert(all.end(), shape_.mlp == Mlp::kGated ? 2 : 1, {shape_.intermediate_size, hidden_});
    all.push_back({hidden_, shape_.intermediate_size});
    return all;
  }

  // docs/plan_time.md counts these operator by operator.
  Elements elements(int64_t layer) const {
    const double d = real(hidden_) / real(setup_.tensor_ranks), rotated = real(query_ + key_),
                 f = real(has_experts(layer) ? shape_.experts.shared_inner_size : shape_.intermediate_size);
    const double residual_forward = 6 * d, residual_backward = 6 * d;
    if (shape_.mlp == Mlp::kPlain) {
      // Layer norms and gelu are one operator each in eager PyTorch too; its queries, keys and values are copied apart.
      const double apart = setup_.fusion == Fusion::kEager ? 2 * (real(query_) + 2 * real(key_)) : 0;
      return {4 * d + residual_forward + 2 * f + apart, 6 * d + residual_backward + 3 * f + apart};
    }
    const double input_sums = 9 * d;  // of the gradients that q, k, v, and gate, up give
    if (setup_.fusion == Fusion::kFused)
      return {4 * d + residual_forward + 2 * rotated + 3 * f,
              6 * d + residual_backward + 2 * rotated + 5 * f + input_sums};
    return {32 * d + residual_forward + 10 * rotated + 5 * f,
            64 * d + residual_backward + 10 * rotated + 9 * f + input_sums};
  }

  Passage block(int64_t layer) const {
    Passage passage;
    const int64_t window = shape_.windows.empty() ? 0 : shape_.windows[static_cast<size_t>(layer)];
    const double scores = 4 * setup_.tokens() * mean_tokens_seen(setup_.sequence_length, window) * real(query_);
    const Elements touched = elements(layer);
    const double token_bytes = setup_.tokens() * element();
    for (const Matrix& matrix : matrices(layer)) {
      add_forward(passage.forward, tokens_, matrix);
      add_backward(passage.backward, tokens_, matrix);
    }
    if (has_experts(layer)) {
      const Matrix router{shape_.experts.count, hidden_};
      add_forward(passage.forward, own_tokens(), router);
      add_backward(passage.backward, own_tokens(), router);
    }
    passage.forward.attention_forward_flops = scores;
    passage.backward.attention_backward_flops = 2.5 * scores;
    passage.forward.attention_forward_rows = passage.backward.attention_backward_rows =
        setup_.tokens() * real(shape_.num_heads);
    passage.forward.bytes = touched.forward * token_bytes;
    passage.backward.bytes = touched.backward * token_bytes;
    passage.forward.kernels = setup_.fusion == Fusion::kFused ? 8 : 30;
    passage.backward.kernels = 2 * passage.forward.kernels;
    if (setup_.beside_calls == BesideCalls::kThisProject) {
      add_copies_of_tensor_calls(passage, is_cut_whole(layer) ? 4 : 2);
      if (setup_.sequence_ranks > 1 && setup_.sequence_exchange == SequenceExchange::kGather) use_mask(passage);
    }
    if (setup_.tensor_ranks > 1)
      passage.forward.tensor_calls = passage.backward.tensor_calls =
          is_cut_whole(layer) ? models::kTensorCallsOfBlock : models::kTensorCallsOfBlockWithExperts;
    add_context_calls(passage);
    if (is_recomputed(layer)) passage.backward += recomputed(passage.forward, layer);
    if (has_experts(layer) && !spreads_experts(layer)) {
      const Passage experts = passage_of_experts(layer);
      passage.forward += experts.forward;
      passage.backward += experts.backward;
    }
    add_copies(passage, layer_parameters());
    return passage;
  }

  bool is_cut_whole(int64_t layer) const { return !has_experts(layer) || shape_.experts.shared_inner_size > 0; }

  // fsdp/parallel/regions.h: tokens of several rows are put next to each other before or behind a call. Gradients of
  // norms are sums over the ranks, of two calls each.
  void add_copies_of_tensor_calls(Passage& passage, int64_t calls) const {
    if (setup_.tensor_ranks == 1) return;
    const double copies = setup_.sequences > 1 ? 2.0 * real(calls * hidden_) * setup_.tokens() * element() : 0;
    passage.forward.bytes += copies;
    passage.backward.bytes += copies;
    passage.forward.kernels += 5 * calls;
    passage.backward.kernels += 6 * calls + 12;
    passage.backward.small_calls += 4;
  }

  // fsdp/parallel/context_attention.h: two chunks of queries, each with all keys up to its end, some of them masked;
  // keys and values put in order, and given to each head of the queries. The backward adds up what both chunks say.
  void use_mask(Passage& passage) const {
    const double own = setup_.tokens(), all = own * real(setup_.sequence_ranks), q = real(query_), kv = 2 * real(key_);
    const double chunk = real(setup_.sequence_length) / real(2 * setup_.sequence_ranks);
    const double flops = 4 * own / 2 * real(2 * setup_.sequence_ranks + 1) * chunk * q;
    passage.forward.attention_forward_flops = passage.backward.attention_backward_flops = 0;
    passage.forward.attention_forward_rows = passage.backward.attention_backward_rows = 0;
    passage.forward.masked_forward_flops = flops;
    passage.backward.masked_backward_flops = 2.5 * flops;
    passage.forward.bytes += (own * (2 * kv + 4 * q) + all * (3 * kv + 2 * q)) * element();
    passage.backward.bytes += (own * (2 * kv + 9 * q) + all * (5 * kv + 16 * q)) * element();
    passage.forward.kernels += 34;
    passage.backward.kernels += 44;
  }

  void add_context_calls(Passage& passage) const {
    if (setup_.sequence_ranks == 1) return;
    if (setup_.sequence_exchange == SequenceExchange::kGather) {
      passage.forward.context_calls = passage.backward.context_calls = models::kContextCallsOfBlock;
    } else {
      passage.forward.ring_rounds = passage.backward.ring_rounds = 1;
      passage.backward.ring_gradient_rounds = 1;
    }
  }

  // So many of the first layers that the share is right.
  bool is_recomputed(int64_t layer) const {
    return setup_.recompute != Recompute::kNone &&
           real(layer) + 0.5 < setup_.recomputed_share * real(shape_.num_layers);
  }

  Work recomputed(const Work& forward, int64_t layer) const {
    Work again;
    const double token_bytes = setup_.tokens() * element();
    const bool of_mlp = !has_experts(layer);  // of experts nothing is computed again but with the block
    const double norms = (of_mlp ? 4 : 2) * real(hidden_), activation = of_mlp ? 3 * real(shape_.intermediate_size) : 0;
    switch (setup_.recompute) {
      case Recompute::kNone:
        break;
      case Recompute::kGateUp:
        for (int i = 0; of_mlp && i < (shape_.mlp == Mlp::kGated ? 2 : 1); ++i)
          add_forward(again, tokens_, {shape_.intermediate_size, hidden_});
        [[fallthrough]];
      case Recompute::kElementwise:
        again.bytes = (norms + activation) * token_bytes;
        again.kernels = 3;
        break;
      case Recompute::kEverySecondProduct:
        for (size_t i = 1; i < forward.products.size(); i += 2) again.products.push_back(forward.products[i]);
        again.bytes = forward.bytes;
        again.kernels = forward.kernels;
        break;
      case Recompute::kBlock:
        again = forward;
        break;
    }
    return again;
  }

  Passage embedding() const {
    Passage passage;
    passage.backward_reads = BackwardReads::kNothing;
    const double rows = setup_.tokens() * real(hidden_);
    passage.forward.tensor_calls = passage.backward.tensor_calls =
        setup_.tensor_ranks > 1 ? models::kTensorCallsOfEmbedding : 0;
    passage.forward.bytes = 2 * rows * element();
    // Its gradient is cleared, then rows are added.
    passage.backward.bytes = (3 * rows + real(shape_.vocab_size * hidden_)) * element();
    passage.forward.kernels = passage.backward.kernels = 2;
    if (setup_.beside_calls == BesideCalls::kNothing) return passage;
    if (setup_.tensor_ranks > 1) {  // rows of other ranks are cleared
      passage.forward.bytes += 2 * rows * element();
      passage.backward.bytes += 2 * rows * element();
      add_copies_of_tensor_calls(passage, 1);
      passage.backward.small_calls = 0;
    }
    if (setup_.sequence_ranks > 1 && setup_.sequence_exchange == SequenceExchange::kGather)
      passage.forward.bytes += kMaskBytes * setup_.tokens() * real(setup_.sequence_length);  // one for all layers
    return passage;
  }

  // Last norm, head and loss. Fused: logits are written, read for the loss, and written and read again as their
  // gradients. Eager: cross entropy in fp32, with a copy on each way.
  Passage head() const {
    Passage passage;
    add_forward(passage.forward, tokens_, {shape_.vocab_size, hidden_});
    add_backward(passage.backward, tokens_, {shape_.vocab_size, hidden_});
    passage.forward.tensor_calls = passage.backward.tensor_calls =
        setup_.tensor_ranks > 1 ? models::kTensorCallsOfHead : 0;
    const double logits = setup_.tokens() * real(shape_.vocab_size);
    const bool is_fused = setup_.fusion == Fusion::kFused;
    passage.forward.bytes = logits * (is_fused ? element() : 14) + 2 * setup_.tokens() * real(hidden_) * element();
    passage.backward.bytes = logits * (is_fused ? element() : 14) + 3 * setup_.tokens() * real(hidden_) * element();
    passage.forward.kernels = passage.backward.kernels = is_fused ? 3 : 8;
    if (setup_.beside_calls == BesideCalls::kThisProject && setup_.tensor_ranks > 1) {
      // fsdp/parallel/cross_entropy.h, in fp32: operator by operator, the largest and the sums over all ranks.
      passage.forward.bytes += 8 * 4 * logits;
      passage.backward.bytes += 2 * 4 * logits;
      passage.forward.kernels += 30;
      passage.backward.kernels += 10;
      passage.forward.small_calls = 4;
      add_copies_of_tensor_calls(passage, 1);
    }
    add_copies(passage, root_parameters());
    return passage;
  }

  const DecoderShape& shape_;
  const DecoderSetup& setup_;
  int64_t tokens_, hidden_, query_, key_;
};

void expect_positive(int64_t value, const char* field) {
  if (value < 1)
    throw std::invalid_argument(std::string("[decoder] ") + field + ": got " + std::to_string(value) +
                                ", expected at least 1.");
}

}  // namespace

DecoderShape DecoderShape::of(const models::DecoderConfig& config) {
  DecoderShape shape;
  shape.vocab_size = config.vocab_size;
  shape.hidden_size = config.hidden_size;
  shape.intermediate_size = config.intermediate_size;
  shape.num_layers = config.num_hidden_layers;
  shape.num_heads = config.num_attention_heads;
  shape.num_key_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.ties_embeddings = config.tie_word_embeddings;
  if (config.has_qk_norm) shape.extra_layer_parameters += 2 * config.head_dim;
  if (config.attention_bias != models::AttentionBias::kNone)
    shape.extra_layer_parameters += (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim;
  if (config.attention_bias == models::AttentionBias::kInputsAndOutput)
    shape.extra_layer_parameters += config.hidden_size;
  shape.latent = config.latent;
  shape.experts = config.experts;
  if (config.sliding_window == 0) return shape;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool slides = config.sliding_layers.empty() || config.sliding_layers.at(static_cast<size_t>(layer));
    shape.windows.push_back(slides ? config.sliding_window : 0);
  }
  return shape;
}

int64_t DecoderShape::layer_matrix_parameters() const {
  const int64_t mlp_matrices = mlp == Mlp::kGated ? 3 : 2;
  return hidden_size * (2 * (num_heads + num_key_heads) * head_dim + mlp_matrices * intermediate_size);
}

int64_t DecoderShape::layer_parameters() const {
  return layer_matrix_parameters() + 2 * hidden_size + extra_layer_parameters;
}

int64_t DecoderShape::num_parameters() const {
  const int64_t tables = (ties_embeddings ? 1 : 2) * vocab_size + num_positions;
  return tables * hidden_size + num_layers * layer_parameters() + hidden_size;
}

double model_flops_per_token(const DecoderShape& shape, int64_t sequence_length) {
  double seen = 0;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const int64_t window = shape.windows.empty() ? 0 : shape.windows[static_cast<size_t>(layer)];
    seen += mean_tokens_seen(sequence_length, window);
  }
  const double matrices =
      real(shape.num_layers * shape.layer_matrix_parameters() + shape.vocab_size * shape.hidden_size);
  return 6 * matrices + 12 * seen * real(shape.num_heads * shape.head_dim);
}

StepWork decoder_work(const DecoderShape& shape, const DecoderSetup& setup) {
  expect_positive(shape.vocab_size, "vocab_size");
  expect_positive(shape.hidden_size, "hidden_size");
  expect_positive(shape.intermediate_size, "intermediate_size");
  expect_positive(shape.num_layers, "num_layers");
  expect_positive(shape.num_heads, "num_heads");
  expect_positive(shape.num_key_heads, "num_key_heads");
  expect_positive(shape.head_dim, "head_dim");
  expect_positive(setup.sequence_length, "sequence_length");
  expect_positive(setup.sequences, "sequences");
  expect_positive(setup.sequence_ranks, "sequence_ranks");
  if (setup.sequence_length % setup.sequence_ranks != 0)
    throw std::invalid_argument("[decoder] sequence_ranks: got " + std::to_string(setup.sequence_ranks) +
                                ", expected a divisor of the " + std::to_string(setup.sequence_length) +
                                " tokens of a sequence.");
  StepWork work = DecoderWorkMaker(shape, setup).make();
  check(work);
  return work;
}

}  // namespace fsdp::plan::time
