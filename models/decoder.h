// The decoder of all supported families: token ids in, logits out. Plain torch::nn on one device; knows nothing of
// sharding. Shape suffixes: B rows, T tokens, E hidden, V vocabulary.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/operators/cross_entropy.h"
#include "models/across_ranks.h"
#include "models/config/activations.h"
#include "models/config/decoder_config.h"
#include "models/config/stages.h"
#include "models/decoder_layer.h"
#include "models/rotary_table.h"

namespace fsdp::models {

// How the tokens of a batch belong together. By default each row is one document at positions 0 .. T-1.
struct Sequence {
  // [B, T] int64, on the CPU (elsewhere the host waits for it): position of each token, where they are not 0 .. T-1 and
  // not told by cu_seqlens.
  at::Tensor position_ids_BT;
  // [documents + 1] int32 or int64, on the CPU: where each document starts in the B * T tokens of the batch, row after
  // row, and B * T at the end. Attention stays inside a document, positions restart with it. A document may not cross
  // rows unless B is 1.
  at::Tensor cu_seqlens;
};

// A block, to be called now or again later: x [B, T, E] and what all blocks share, to [B, T, E].
using Block = std::function<at::Tensor(const at::Tensor& x_BTE, const AttentionInputs& inputs)>;
// Runs the block of that number, counted from 0. The seam for recomputation of activations, and for graphs.
using BlockRunner = std::function<at::Tensor(int64_t number, const Block& block, const at::Tensor& x_BTE,
                                             const AttentionInputs& inputs)>;

// `model.embed_tokens`, `model.layers`, `model.norm`: the part below the head, named as Hugging Face names it.
class DecoderBodyImpl : public torch::nn::Module {
 public:
  DecoderBodyImpl(const DecoderConfig& config, const at::TensorOptions& options);

  // Null in a stage without it.
  const Linear& embed_tokens() const { return embed_tokens_; }
  // Of all layers of experts.
  ExpertBalance& balance() { return *balance_; }
  // Of the activations: those of the norms. Where no gradients are asked for, matrices may be bf16 when these are fp32:
  // they are read as they are, and the sums stay fp32.
  at::TensorOptions activation_options() const;
  const torch::nn::ModuleList& layers() const { return layers_; }
  // As DecoderImpl::keep_blocks().
  void keep_blocks(const std::vector<BlockRange>& stages, bool head_is_embedding);
  void set_across(const std::shared_ptr<AcrossRanks>& across);
  at::Tensor forward(const at::Tensor& input_ids_BT, const AttentionInputs& inputs, const BlockRunner& run_block);
  // As DecoderImpl::run_stage().
  at::Tensor run_stage(const BlockRange& stage, const at::Tensor& given_BTE, const at::Tensor& input_ids_BT,
                       const AttentionInputs& inputs, const BlockRunner& run_block);

 private:
  at::Tensor embed(const at::Tensor& input_ids_BT);
  at::Tensor run_blocks(const BlockRange& range, at::Tensor x_BTE, const AttentionInputs& inputs,
                        const BlockRunner& run_block);
  int64_t num_blocks() const { return static_cast<int64_t>(layers_->size()); }

  std::shared_ptr<AcrossRanks> across_;
  Linear embed_tokens_{nullptr};  // a table: rows of it are looked up; null in a stage without it
  torch::nn::ModuleList layers_;
  RmsNorm norm_{nullptr};
  std::shared_ptr<ExpertBalance> balance_ = std::make_shared<ExpertBalance>();
};
TORCH_MODULE(DecoderBody);

// Parameter names, order and shapes are exactly Hugging Face's (of experts those of transformers 5 in memory; files
// have stored_parts()); with tied embeddings there is one tensor, `model.embed_tokens.weight`, and no `lm_head.weight`.
// Not thread-safe.
class DecoderImpl : public torch::nn::Module {
 public:
  // Parameters have the dtype and device of `options` and are uninitialised: call reset_parameters() or load_weights().
  explicit DecoderImpl(DecoderConfig config, const at::TensorOptions& options = {});

  // input_ids [B, T] int64 -> logits [B, T, V] in the parameters' dtype.
  // Throws c10::Error on ids outside the vocabulary and on a Sequence that does not fit.
  at::Tensor forward(const at::Tensor& input_ids_BT, const Sequence& sequence = {});

  // Hidden states [B, T, E] after the last norm: what loss_of() and logits_of() go on from.
  at::Tensor hidden_states(const at::Tensor& input_ids_BT, const Sequence& sequence = {}) {
    return run_body(input_ids_BT, sequence);
  }

  // Cross entropy of the logits that forward() gives: targets [B * T] and terms as kernels::cross_entropy() takes them;
  // fp32 scalar. Logits of more than kMostLogitBytes are never whole in memory.
  at::Tensor loss(const at::Tensor& input_ids_BT, const at::Tensor& targets_N, const Sequence& sequence = {},
                  kernels::Reduction reduction = kernels::Reduction::kMean, const kernels::LossTerms& terms = {});
  static constexpr int64_t kMostLogitBytes = kMostWholeLogitBytes;

  // Of the forward() or loss() before, with experts: the loss that keeps them equally busy, without the factor
  // config().experts.balance_loss that transformers adds it with; a part of it where ranks are set, whose parts add up.
  // 0-dim fp32, with a gradient; to be added to what that loss() gave, before its backward. Once; undefined without
  // experts. COLLECTIVE over ranks that are set.
  at::Tensor balance_loss() { return body_->balance().loss(expert_ranks_.get()); }
  // Double [layers of experts, experts]: how many choices fell on each, on all ranks, known after balance_loss().
  const at::Tensor& expert_counts() { return body_->balance().counts_LE(); }

  // Cross entropy of each target [B * T] alone, fp32, 0 where it is kernels::kIgnoreIndex; without gradients. Logits of
  // more than kMostLogitBytes are never whole in memory.
  at::Tensor token_losses(const at::Tensor& input_ids_BT, const at::Tensor& targets_N, const Sequence& sequence = {});

  // Prompts of fewer tokens are short: products of few rows read them, as they do tokens that are continued.
  static constexpr size_t kShortPrompt = 16;
  static bool is_short(size_t num_tokens) { return num_tokens < kShortPrompt; }

  // Generation: `prompts`, none empty, follow the tokens that `rows` of `cache` have, none where there are several, and
  // are taken in. Logits [P, V] of each prompt's last token, which on the CPU do not depend on the prompts beside it,
  // bit for bit, up to kernels::kFewRows prompts. Short ones are read by themselves, at most kernels::kFewRows tokens
  // at a time. Throws c10::Error otherwise. Runs without gradients.
  at::Tensor read_prompts(const std::vector<std::vector<int64_t>>& prompts, KeyValueCache& cache,
                          std::vector<int64_t> rows);

  // Generation: `input_ids` [B, T] follow the tokens that `rows` of `cache` have (empty: rows 0 .. B-1), which take
  // them in. Same logits [B, T, V] as forward() over everything at once, for the new tokens. With T = 1 on the CPU a
  // row's logits do not depend on the rows beside it, bit for bit, up to kernels::kFewRows rows. Runs without
  // gradients.
  at::Tensor forward_cached(const at::Tensor& input_ids_BT, KeyValueCache& cache, std::vector<int64_t> rows = {});

  // Matrices ~ normal(0, initializer_range), norms 1, biases 0. Each parameter's values depend on `seed` and its name
  // only: not on the number of ranks, the dtype (but for rounding) or the global generators. Writes the parameters in
  // place.
  void reset_parameters(uint64_t seed);
  // One of them, by its name.
  void reset_parameter(const std::string& name, const at::Tensor& parameter, uint64_t seed) const;

  const DecoderConfig& config() const { return config_; }
  // Where the parameters are, and the ids have to be.
  c10::Device device() const { return body_->activation_options().device(); }
  // The blocks in order: what one shards one by one. In a stage, modules without parameters stand for those of others.
  const torch::nn::ModuleList& layers() const { return body_->layers(); }
  // How q, k and v, and gate and up, are computed in every block.
  void set_projections(Projections projections);
  // Calls every block through `run_block`; an empty function calls them directly.
  void set_block_runner(BlockRunner run_block) { run_block_ = std::move(run_block); }
  // The parameters are parts, cut as AcrossRanks says: forward() and loss() then are COLLECTIVE over its ranks, which
  // call them alike. Tokens have to divide by their number. Not for the other calls.
  void set_across(std::shared_ptr<AcrossRanks> across);
  // Experts are spread over ranks, or other ranks have other tokens: forward() and loss() then may be COLLECTIVE, as
  // ExpertRanks says. Generation likewise, where experts are spread.
  void set_expert_ranks(std::shared_ptr<ExpertRanks> ranks);

  // Makes stages of a pipeline of it, those of one rank: their blocks stay, the embedding where the first block or a
  // head that is the embedding does, the last norm and the head where the last block does. Parameters keep their names.
  // Before it is sharded; afterwards only run_stage(), loss_of() and logits_of() are for it.
  void keep_blocks(const std::vector<BlockRange>& stages);
  // What has the embedding's weight [V, E] and nothing else; null in a stage without it. It may rest as codes.
  const Linear& embed_tokens() const { return body_->embed_tokens(); }
  // What makes logits: the embedding where they are tied; null in a stage without it. It may rest as codes.
  const Linear& head() const { return lm_head_.is_empty() ? embed_tokens() : lm_head_; }
  bool has_first_block() const { return has_first_block_; }
  bool has_last_block() const { return has_last_block_; }
  // `given` [B, T, E]: what the stage before returned, not read by that with the first block. The ids, of the same
  // tokens, are looked up there, and tell their number elsewhere. Returns hidden states [B, T, E].
  at::Tensor run_stage(const BlockRange& stage, const at::Tensor& given_BTE, const at::Tensor& input_ids_BT,
                       const Sequence& sequence = {});
  // Of the run_stage() before, with experts: what the stage's layers chose. Local.
  ExpertChoices take_choices() { return body_->balance().take(); }
  // Before the backward of that run_stage(): as ExpertBalance::resume(). Local.
  void resume_choices(const ExpertChoices& choices, const at::Tensor& gradient_E) {
    body_->balance().resume(choices.round, gradient_E);
  }
  // Of the last stage's hidden states: what loss() and forward() make of them.
  at::Tensor loss_of(const at::Tensor& hidden_BTE, const at::Tensor& targets_N,
                     kernels::Reduction reduction = kernels::Reduction::kMean, const kernels::LossTerms& terms = {});
  at::Tensor logits_of(const at::Tensor& hidden_BTE);

 private:
  // Hidden states [B, T, E] after the last norm.
  at::Tensor run_body(const at::Tensor& input_ids_BT, const Sequence& sequence);
  // The head's weight, decoded to the activations' type where it is codes.
  at::Tensor head_VE() const;
  at::Tensor compute_logits(const at::Tensor& hidden_BTE);
  // Hidden states [B, T, E] of tokens that the cache's forward has begun with.
  at::Tensor hidden_cached(const at::Tensor& input_ids_BT, KeyValueCache& cache,
                           const std::pair<at::Tensor, at::Tensor>& cos_and_sin);
  // cos and sin of `length` positions from each of `starts` on.
  std::pair<at::Tensor, at::Tensor> rotary_rows(const std::vector<int64_t>& starts, int64_t length);
  AttentionInputs make_inputs(const at::Tensor& input_ids_BT, const Sequence& sequence);

  DecoderConfig config_;
  DecoderBody body_{nullptr};
  Linear lm_head_{nullptr};  // null with tied embeddings, and in a stage without it
  bool has_first_block_ = true, has_last_block_ = true;
  RotaryTable rotary_;
  BlockRunner run_block_;
  std::shared_ptr<AcrossRanks> across_;        // null: whole
  std::shared_ptr<ExpertRanks> expert_ranks_;  // null: all experts and tokens are here
};
TORCH_MODULE(Decoder);

// Targets for causal language modelling: result[b, t] = labels[b, t + 1], and kernels::kIgnoreIndex at the last place,
// so that logits need not be cut. labels, result [B, T] int64.
at::Tensor shift_labels(const at::Tensor& labels_BT);

// Fills `parameter` with normal(0, stddev) from a generator of its own, seeded by `seed` and `name`.
void fill_normal(const at::Tensor& parameter, double stddev, uint64_t seed, const std::string& name);
// The same, uniform in [-bound, bound).
void fill_uniform(const at::Tensor& parameter, double bound, uint64_t seed, const std::string& name);

}  // namespace fsdp::models
