#include "models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/linear.h"
#include "kernels/products/nf4/nf4_embedding.h"
#include "kernels/products/rowwise_scope.h"

namespace fsdp::models {
namespace {

// 64-bit FNV-1a, then mixed with the seed so that neighbouring seeds share nothing (splitmix64's finaliser).
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash += 0x9E3779B97F4A7C15u * (seed + 1);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  return hash ^ (hash >> 31);
}

std::vector<int64_t> document_lengths(const at::Tensor& cu_seqlens, int64_t rows, int64_t length) {
  const at::Tensor starts = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* start = starts.const_data_ptr<int64_t>();
  const int64_t count = starts.numel() - 1;
  TORCH_CHECK(starts.dim() == 1 && count >= 1 && start[0] == 0 && start[count] == rows * length,
              "[decoder] cu_seqlens: expected [documents + 1] numbers from 0 to ", rows * length, ", got ", cu_seqlens);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(start[i] < start[i + 1], "[decoder] cu_seqlens: document ", i, " has length ", start[i + 1] - start[i]);
    TORCH_CHECK(start[i] / length == (start[i + 1] - 1) / length, "[decoder] cu_seqlens: document ", i,
                " crosses the end of a row of ", length, " tokens");
    lengths.push_back(start[i + 1] - start[i]);
  }
  return lengths;
}

at::Tensor restarting_positions(const std::vector<int64_t>& lengths, int64_t rows, int64_t length) {
  at::Tensor positions = at::empty({rows, length}, at::kLong);
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  for (const int64_t count : lengths)
    for (int64_t i = 0; i < count; ++i) *position++ = i;
  return positions;
}

}  // namespace

DecoderBodyImpl::DecoderBodyImpl(const DecoderConfig& config, const at::TensorOptions& options) {
  embed_tokens_ = register_module("embed_tokens", Linear(config.hidden_size, config.vocab_size, options));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    layers_->push_back(DecoderLayer(config, layer, options));
    layers_->ptr(static_cast<size_t>(layer))->as<DecoderLayer>()->set_balance(balance_);
  }
  register_module("layers", layers_);
  norm_ = register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps, options));
}

at::TensorOptions DecoderBodyImpl::activation_options() const {
  if (!norm_.is_empty()) return norm_->weight.options().requires_grad(false);
  for (const auto& layer : *layers_) {
    if (const auto* block = layer->as<DecoderLayer>()) return block->activation_options();
  }
  TORCH_CHECK(false, "[decoder] a stage without blocks");
}

at::Tensor DecoderBodyImpl::embed(const at::Tensor& input_ids_BT) {
  if (embed_tokens_->is_nf4())  // never cut
    return kernels::nf4_embedding(embed_tokens_->codes(), embed_tokens_->out_features(), embed_tokens_->in_features(),
                                  input_ids_BT, activation_options().dtype().toScalarType());
  const at::Tensor embedded_BTE = across_ ? across_->embed(embed_tokens_->weight, input_ids_BT)
                                          : kernels::embedding(embed_tokens_->weight, input_ids_BT);
  return embedded_BTE.to(activation_options().dtype());
}

at::Tensor DecoderBodyImpl::run_blocks(const BlockRange& range, at::Tensor x_BTE, const AttentionInputs& inputs,
                                       const BlockRunner& run_block) {
  for (int64_t number = range.first; number < range.last; ++number) {
    auto* block = layers_->ptr(static_cast<size_t>(number))->as<DecoderLayer>();
    if (!run_block) {
      x_BTE = block->forward(x_BTE, inputs);
    } else {
      const Block call = [block](const at::Tensor& x, const AttentionInputs& own) { return block->forward(x, own); };
      x_BTE = run_block(number, call, x_BTE, inputs);
    }
  }
  return x_BTE;
}

at::Tensor DecoderBodyImpl::forward(const at::Tensor& input_ids_BT, const AttentionInputs& inputs,
                                    const BlockRunner& run_block) {
  return norm_(run_blocks({0, num_blocks()}, embed(input_ids_BT), inputs, run_block));
}

at::Tensor DecoderBodyImpl::run_stage(const BlockRange& stage, const at::Tensor& given_BTE,
                                      const at::Tensor& input_ids_BT, const AttentionInputs& inputs,
                                      const BlockRunner& run_block) {
  const at::Tensor y_BTE = run_blocks(stage, stage.first == 0 ? embed(input_ids_BT) : given_BTE, inputs, run_block);
  return stage.last == num_blocks() ? norm_(y_BTE) : y_BTE;
}

// Modules without parameters stand for the blocks of other stages, so that names tell a block's place in the model.
void DecoderBodyImpl::keep_blocks(const std::vector<BlockRange>& stages, bool head_is_embedding) {
  torch::nn::ModuleList kept;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    const bool is_kept =
        std::any_of(stages.begin(), stages.end(), [i](const BlockRange& stage) { return stage.contains(i); });
    kept->push_back(is_kept ? layers_->ptr(static_cast<size_t>(i)) : torch::nn::Identity().ptr());
  }
  const bool has_end = stages.back().last == num_blocks();
  layers_ = replace_module("layers", kept);
  if (stages.front().first > 0 && !(has_end && head_is_embedding)) {
    unregister_module("embed_tokens");
    embed_tokens_ = nullptr;
  }
  if (has_end) return;
  unregister_module("norm");
  norm_ = nullptr;
}

void DecoderBodyImpl::set_across(const std::shared_ptr<AcrossRanks>& across) {
  across_ = across;
  int64_t number = 0;
  for (const auto& layer : *layers_) {
    const std::string name = "model.layers." + std::to_string(number++);
    if (auto* block = layer->as<DecoderLayer>()) block->set_across(across, name);
  }
}

DecoderImpl::DecoderImpl(DecoderConfig config, const at::TensorOptions& options)
    : config_(std::move(config)), rotary_(config_.rope, config_.rotary_dim()) {
  body_ = register_module("model", DecoderBody(config_, options));
  if (!config_.tie_word_embeddings)
    lm_head_ = register_module("lm_head", Linear(config_.hidden_size, config_.vocab_size, options));
}

AttentionInputs DecoderImpl::make_inputs(const at::Tensor& input_ids_BT, const Sequence& sequence) {
  TORCH_CHECK(input_ids_BT.dim() == 2 && input_ids_BT.scalar_type() == at::kLong,
              "[decoder] input_ids [B, T] int64 needed: got ", input_ids_BT.sizes(), " ", input_ids_BT.scalar_type());
  const int64_t parts = across_ ? across_->sequence_parts() : 1;
  const int64_t rows = input_ids_BT.size(0), length = input_ids_BT.size(1) * parts;  // of the whole sequences
  const at::TensorOptions options = body_->activation_options();
  AttentionInputs inputs;
  at::Tensor positions = sequence.position_ids_BT;
  if (sequence.cu_seqlens.defined()) {
    inputs.document_lengths = document_lengths(sequence.cu_seqlens, rows, length);
    if (!positions.defined()) positions = restarting_positions(inputs.document_lengths, rows, length);
    if (static_cast<int64_t>(inputs.document_lengths.size()) == rows) inputs.document_lengths.clear();  // plain rows
  }
  TORCH_CHECK(!positions.defined() || positions.sizes() == at::IntArrayRef({rows, length}),
              "[decoder] position_ids: got ", positions.sizes(), ", expected [", rows, ", ", length, "]");
  if (parts > 1 && !positions.defined()) positions = at::arange(length, at::kLong).expand({rows, length});
  if (parts > 1) positions = across_->part_of_sequences(positions);
  std::tie(inputs.cos, inputs.sin) =
      positions.defined() ? rotary_.rows(positions, options) : rotary_.rows(0, length, options);
  return inputs;
}

void DecoderImpl::set_projections(Projections projections) {
  for (const auto& layer : *layers()) {
    if (auto* block = layer->as<DecoderLayer>()) block->set_projections(projections);
  }
}

void DecoderImpl::set_across(std::shared_ptr<AcrossRanks> across) {
  body_->set_across(across);
  across_ = std::move(across);
}

at::Tensor DecoderImpl::head_VE() const {
  return head()->whole_weight(body_->activation_options().dtype().toScalarType());
}

at::Tensor DecoderImpl::compute_logits(const at::Tensor& hidden_BTE) { return kernels::linear(hidden_BTE, head_VE()); }

void DecoderImpl::set_expert_ranks(std::shared_ptr<ExpertRanks> ranks) {
  int64_t number = 0;
  for (const auto& layer : *layers()) {
    const std::string name = "model.layers." + std::to_string(number++) + ".mlp";
    const auto* block = layer->as<DecoderLayer>();
    if (block == nullptr || block->mixture().is_empty()) continue;
    Mixture mixture = block->mixture();
    mixture->set_ranks(ranks, name);
  }
  expert_ranks_ = std::move(ranks);
}

at::Tensor DecoderImpl::run_body(const at::Tensor& input_ids_BT, const Sequence& sequence) {
  const AttentionInputs inputs = make_inputs(input_ids_BT, sequence);
  if (config_.experts.count == 0) return body_->forward(input_ids_BT, inputs, run_block_);
  body_->balance().begin();
  return body_->balance().finish(body_->forward(input_ids_BT, inputs, run_block_));
}

at::Tensor DecoderImpl::forward(const at::Tensor& input_ids_BT, const Sequence& sequence) {
  return logits_of(run_body(input_ids_BT, sequence));
}

at::Tensor DecoderImpl::logits_of(const at::Tensor& hidden_BTE) {
  return across_ ? across_->logits(hidden_BTE, head_VE()) : compute_logits(hidden_BTE);
}

at::Tensor DecoderImpl::loss(const at::Tensor& input_ids_BT, const at::Tensor& targets_N, const Sequence& sequence,
                             kernels::Reduction reduction, const kernels::LossTerms& terms) {
  return loss_of(run_body(input_ids_BT, sequence), targets_N, reduction, terms);
}

at::Tensor DecoderImpl::loss_of(const at::Tensor& hidden_BTE, const at::Tensor& targets_N, kernels::Reduction reduction,
                                const kernels::LossTerms& terms) {
  const at::Tensor hidden_NE = hidden_BTE.flatten(0, 1);
  if (head()->is_nf4() && hidden_NE.is_cpu())  // never cut
    return kernels::nf4_linear_cross_entropy(hidden_NE, head()->codes(), config_.vocab_size, targets_N, reduction,
                                             terms);
  if (across_) return across_->loss(hidden_BTE, head_VE(), targets_N, reduction, terms);
  const int64_t bytes = hidden_NE.size(0) * config_.vocab_size * static_cast<int64_t>(hidden_NE.element_size());
  // On the CPU linear_cross_entropy() keeps small logits itself.
  if (!hidden_NE.is_cpu() && bytes <= kMostLogitBytes)
    return kernels::cross_entropy(compute_logits(hidden_NE), targets_N, reduction, terms);
  return kernels::linear_cross_entropy(hidden_NE, head_VE(), targets_N, reduction, terms);
}

void DecoderImpl::keep_blocks(const std::vector<BlockRange>& stages) {
  TORCH_CHECK(!stages.empty(), "[decoder] keep_blocks(): got no stages, expected at least one");
  has_first_block_ = stages.front().first == 0;
  has_last_block_ = stages.back().last == config_.num_hidden_layers;
  body_->keep_blocks(stages, config_.tie_word_embeddings);
  if (has_last_block() || lm_head_.is_empty()) return;
  unregister_module("lm_head");
  lm_head_ = nullptr;
}

at::Tensor DecoderImpl::run_stage(const BlockRange& stage, const at::Tensor& given_BTE, const at::Tensor& input_ids_BT,
                                  const Sequence& sequence) {
  if (config_.experts.count > 0) body_->balance().begin();
  return body_->run_stage(stage, given_BTE, input_ids_BT, make_inputs(input_ids_BT, sequence), run_block_);
}

at::Tensor DecoderImpl::token_losses(const at::Tensor& input_ids_BT, const at::Tensor& targets_N,
                                     const Sequence& sequence) {
  TORCH_CHECK(!across_, "[decoder] token_losses(): got a decoder that is cut over ranks, expected a whole one");
  const at::NoGradGuard no_grad;
  const at::Tensor hidden_NE =
      body_->forward(input_ids_BT, make_inputs(input_ids_BT, sequence), /*run_block=*/{}).flatten(0, 1);
  const int64_t num_tokens = hidden_NE.size(0);
  const int64_t step = std::max<int64_t>(1, kMostLogitBytes / 8 / config_.vocab_size);  // fp32, and its logarithm
  at::Tensor losses_N = at::empty({num_tokens}, hidden_NE.options().dtype(at::kFloat));
  const at::Tensor weight_VE = head_VE();
  for (int64_t begin = 0; begin < num_tokens; begin += step) {
    const int64_t count = std::min(step, num_tokens - begin);
    const at::Tensor logits_CV = kernels::linear(hidden_NE.narrow(0, begin, count), weight_VE).to(at::kFloat);
    const at::Tensor targets_C = targets_N.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor picked_C1 = at::log_softmax(logits_CV, 1).gather(1, targets_C.clamp_min(0)).neg();
    losses_N.narrow(0, begin, count).copy_(picked_C1.masked_fill(targets_C.eq(kernels::kIgnoreIndex), 0).squeeze(1));
  }
  return losses_N;
}

at::Tensor DecoderImpl::hidden_cached(const at::Tensor& input_ids_BT, KeyValueCache& cache,
                                      const std::pair<at::Tensor, at::Tensor>& cos_and_sin) {
  TORCH_CHECK(!across_, "[decoder] generation: got a decoder that is cut over ranks, expected a whole one");
  AttentionInputs inputs;
  inputs.cache = &cache;
  std::tie(inputs.cos, inputs.sin) = cos_and_sin;
  const at::Tensor hidden_BTE = body_->forward(input_ids_BT, inputs, /*run_block=*/{});
  cache.finish();
  return hidden_BTE;
}

namespace {

// The product that each of the prompts has alone.
kernels::Rowwise rows_of(const std::vector<std::vector<int64_t>>& prompts) {
  const auto count = std::count_if(prompts.begin(), prompts.end(),
                                   [](const auto& prompt) { return DecoderImpl::is_short(prompt.size()); });
  if (count == 0) return kernels::Rowwise::kManyRows;
  const size_t num_tokens = std::accumulate(prompts.begin(), prompts.end(), size_t{0},
                                            [](size_t sum, const auto& p) { return sum + p.size(); });
  TORCH_CHECK(static_cast<size_t>(count) == prompts.size() && num_tokens <= size_t{kernels::kFewRows},
              "[decoder] prompts read together: got ", count, " short ones of ", prompts.size(), " and ", num_tokens,
              " tokens, expected none of fewer than ", DecoderImpl::kShortPrompt, " tokens, or such alone and at most ",
              kernels::kFewRows, " tokens");
  return kernels::Rowwise::kFewRows;
}

}  // namespace

at::Tensor DecoderImpl::read_prompts(const std::vector<std::vector<int64_t>>& prompts, KeyValueCache& cache,
                                     std::vector<int64_t> rows) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(!prompts.empty() && prompts.size() == rows.size(), "[decoder] got ", prompts.size(), " prompts for ",
              rows.size(), " rows of the cache");
  const kernels::RowwiseScope products(rows_of(prompts));
  std::vector<int64_t> ids, lengths, last;
  for (const std::vector<int64_t>& prompt : prompts) {
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    lengths.push_back(static_cast<int64_t>(prompt.size()));
    last.push_back(static_cast<int64_t>(ids.size()) - 1);
  }
  const auto num_tokens = static_cast<int64_t>(ids.size());
  cache.begin(std::move(rows), lengths, config_.num_hidden_layers);
  const bool is_one = prompts.size() == 1;
  TORCH_CHECK(is_one || *std::max_element(cache.starts().begin(), cache.starts().end()) == 0,
              "[decoder] several prompts need empty rows of the cache, which start at ", cache.starts());
  const at::TensorOptions options = body_->activation_options();
  const at::Tensor hidden_1NE =
      hidden_cached(at::tensor(ids, at::kLong).unsqueeze(0).to(device()), cache,
                    is_one ? rotary_.rows(cache.starts()[0], num_tokens, options)
                           : rotary_.rows(restarting_positions(lengths, 1, num_tokens), options));
  const kernels::RowwiseScope head(kernels::Rowwise::kFewRows);
  return compute_logits(hidden_1NE.squeeze(0).index_select(0, at::tensor(last, at::kLong).to(device())));
}

at::Tensor DecoderImpl::forward_cached(const at::Tensor& input_ids_BT, KeyValueCache& cache,
                                       std::vector<int64_t> rows) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(input_ids_BT.dim() == 2 && input_ids_BT.numel() > 0, "[decoder] input_ids [B, T] int64 needed: got ",
              input_ids_BT.sizes());
  const int64_t length = input_ids_BT.size(1);
  const kernels::RowwiseScope products(length == 1 ? kernels::Rowwise::kFewRows : kernels::Rowwise::kManyRows);
  if (rows.empty())
    for (int64_t row = 0; row < input_ids_BT.size(0); ++row) rows.push_back(row);
  TORCH_CHECK(static_cast<int64_t>(rows.size()) == input_ids_BT.size(0), "[decoder] got ", rows.size(),
              " rows of the cache for input_ids ", input_ids_BT.sizes());
  std::vector<int64_t> lengths(rows.size(), length);
  cache.begin(std::move(rows), std::move(lengths), config_.num_hidden_layers);
  return compute_logits(hidden_cached(input_ids_BT, cache, rotary_rows(cache.starts(), length)));
}

std::pair<at::Tensor, at::Tensor> DecoderImpl::rotary_rows(const std::vector<int64_t>& starts, int64_t length) {
  const at::TensorOptions options = body_->activation_options();
  const bool alike = std::all_of(starts.begin(), starts.end(), [&](int64_t start) { return start == starts.front(); });
  if (alike) return rotary_.rows(starts.front(), length, options);
  return rotary_.rows(at::tensor(starts, at::kLong).unsqueeze(1) + at::arange(length, at::kLong), options);
}

void DecoderImpl::reset_parameters(uint64_t seed) {
  for (const auto& entry : named_parameters()) reset_parameter(entry.key(), entry.value(), seed);
}

void DecoderImpl::reset_parameter(const std::string& name, const at::Tensor& parameter, uint64_t seed) const {
  const at::NoGradGuard no_grad;
  if (parameter.dim() == 1)
    parameter.fill_(name.ends_with(".bias") ? 0 : 1);
  else
    fill_normal(parameter, config_.initializer_range, seed, name);
}

at::Tensor shift_labels(const at::Tensor& labels_BT) {
  at::Tensor targets_BT = at::full_like(labels_BT, kernels::kIgnoreIndex);
  const int64_t kept = std::max<int64_t>(labels_BT.size(1) - 1, 0);
  targets_BT.narrow(1, 0, kept).copy_(labels_BT.narrow(1, labels_BT.size(1) - kept, kept));
  return targets_BT;
}

namespace {

// Calls `draw(count, generator)` for one piece after the other.
template <class Draw>
void fill_random(const at::Tensor& parameter, uint64_t seed, const std::string& name, const Draw& draw) {
  at::NoGradGuard no_grad;
  constexpr int64_t kPiece = int64_t{1} << 20;  // bounds the fp32 scratch space; part of what defines the values
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed_of(seed, name));
  at::Tensor flat = parameter.view(-1);
  for (int64_t begin = 0; begin < flat.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, flat.numel() - begin);
    flat.narrow(0, begin, count).copy_(draw(count, generator));
  }
}

}  // namespace

void fill_normal(const at::Tensor& parameter, double stddev, uint64_t seed, const std::string& name) {
  fill_random(parameter, seed, name, [&](int64_t count, const at::Generator& generator) {
    return at::normal(0.0, stddev, {count}, generator);
  });
}

void fill_uniform(const at::Tensor& parameter, double bound, uint64_t seed, const std::string& name) {
  fill_random(parameter, seed, name, [&](int64_t count, const at::Generator& generator) {
    return at::rand({count}, generator).mul_(2 * bound).sub_(bound);
  });
}

}  // namespace fsdp::models
