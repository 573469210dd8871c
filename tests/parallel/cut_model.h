// A small decoder, whole or for ranks along "tp": the blocks have one type, whose linear layers are cut by
// parallelize(); embedding and head have the types that hold a part of the vocabulary.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {

inline constexpr int64_t kWidth = 16, kHeadDim = 2, kInner = 24, kVocab = 40, kBlocks = 2;

template <class Linear>
struct BlockOf : torch::nn::Module {
  BlockOf() {
    const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
      return register_module(name, Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    inner_norm = register_module("inner_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    q_proj = linear("q_proj", kWidth, kWidth, true);
    k_proj = linear("k_proj", kWidth, kWidth, false);
    v_proj = linear("v_proj", kWidth, kWidth, false);
    o_proj = linear("o_proj", kWidth, kWidth, true);
    up = linear("up", kWidth, kInner, true);
    down = linear("down", kInner, kWidth, true);
  }

  torch::Tensor forward(const torch::Tensor& x_BTE) {
    const torch::Tensor normed = norm(x_BTE);
    const auto heads = [](const torch::Tensor& y) { return y.unflatten(-1, {-1, kHeadDim}).transpose(1, 2); };
    const torch::Tensor q = heads(q_proj(normed)), k = heads(k_proj(normed)), v = heads(v_proj(normed));
    const torch::Tensor scores = (q.matmul(k.transpose(-1, -2)) / std::sqrt(kHeadDim)).softmax(-1);
    const torch::Tensor h = x_BTE + o_proj(scores.matmul(v).transpose(1, 2).flatten(2));
    return h + down(torch::gelu(up(inner_norm(h))));
  }

  torch::nn::LayerNorm norm{nullptr}, inner_norm{nullptr};
  Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr}, up{nullptr}, down{nullptr};
};
using WholeBlock = BlockOf<torch::nn::Linear>;
using CutBlock = BlockOf<parallel::Linear>;

// Draws the same numbers whole and in parts.
struct WholeModel : torch::nn::Module {
  WholeModel() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocab, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) layers->push_back(std::make_shared<WholeBlock>());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocab).bias(false)));
  }
  // Sum over the targets that are not -100.
  torch::Tensor loss(const torch::Tensor& ids_BT, const torch::Tensor& targets_BT) {
    torch::Tensor x = embedding(ids_BT);
    for (const auto& layer : *layers) x = layer->as<WholeBlock>()->forward(x);
    return torch::cross_entropy_loss(head(norm(x)).flatten(0, 1), targets_BT.flatten(), {}, at::Reduction::Sum);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};

struct CutModel : torch::nn::Module {
  CutModel(const Mesh& mesh, parallel::Tokens tokens)
      : ranks(parallel::Ranks::along(mesh, "tp")),
        tokens(tokens),
        embedding(kVocab, kWidth, mesh, parallel::EmbeddingOptions{tokens, "embedding"}),
        head(nullptr) {
    register_module("embedding", embedding);
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) layers->push_back(std::make_shared<CutBlock>());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module(
        "head", parallel::ColumnLinear(kWidth, kVocab, mesh, parallel::LinearOptions{false, tokens, "head"}));
    parallel::Plan plan = {{"layers.*_proj", parallel::Style::kColumn}, {"layers.*.up", parallel::Style::kColumn}};
    plan.insert(plan.begin(), {"layers.*.o_proj", parallel::Style::kRow});
    plan.emplace_back("layers.*.down", parallel::Style::kRow);
    if (tokens == parallel::Tokens::kOwn) plan.emplace_back("*norm", parallel::Style::kTokens);
    parallelize(*this, plan, mesh, tokens);
  }
  torch::Tensor loss(const torch::Tensor& ids_BT, const torch::Tensor& targets_BT) {
    torch::Tensor x = embedding(ids_BT);
    for (const auto& layer : *layers) x = layer->as<CutBlock>()->forward(x);
    return parallel::vocab_cross_entropy(head(norm(x)).flatten(0, 1), targets_BT.flatten(), ranks).sum();
  }
  std::shared_ptr<parallel::Ranks> ranks;
  parallel::Tokens tokens;
  parallel::VocabEmbedding embedding;
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  parallel::ColumnLinear head;
};

inline constexpr uint64_t kCutModelSeed = 771;

inline std::shared_ptr<WholeModel> make_whole_model(at::ScalarType dtype) {
  auto model = make_seeded(kCutModelSeed, [] { return std::make_shared<WholeModel>(); });
  model->to(dtype);
  return model;
}

// Ranks must all be connected along "tp" before they take the generator in turn.
inline std::shared_ptr<CutModel> make_cut_model(const Mesh& mesh, parallel::Tokens tokens, at::ScalarType dtype) {
  const auto connected = parallel::Ranks::along(mesh, "tp");
  auto model = make_seeded(kCutModelSeed, [&] { return std::make_shared<CutModel>(mesh, tokens); });
  model->to(dtype);
  return model;
}

// Each block and the root.
inline Unit shard_cut_model(CutModel& model, const Mesh& mesh, const ShardOptions& options = {}) {
  for (const auto& layer : *model.layers) fully_shard(*layer, mesh, options);
  return fully_shard(model, mesh, options);
}

// ids and targets [rows, T]; some targets do not count, unevenly many in each row.
inline std::pair<torch::Tensor, torch::Tensor> cut_batch(uint64_t seed, int64_t rows, int64_t tokens) {
  const at::Generator numbers = generator(seed);
  const torch::Tensor ids = torch::randint(kVocab, {rows, tokens}, numbers, torch::kLong);
  torch::Tensor targets = torch::randint(kVocab, {rows, tokens}, numbers, torch::kLong);
  targets.masked_fill_(torch::rand({rows, tokens}, numbers) < 0.2, -100);
  return {ids, targets};
}

}  // namespace fsdp::testing
