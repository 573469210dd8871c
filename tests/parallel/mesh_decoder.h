// A small decoder, dense or with experts: its definition on whole tensors, and the stages of a rank of any mesh.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/parallel/mesh_case.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {

using Weights = std::map<std::string, torch::Tensor>;

// Of all rows: ids, targets (some do not count) and numbers of documents, [rows, T].
struct MeshBatch {
  MeshBatch(const MeshCase& mesh_case, uint64_t step) {
    const at::Generator numbers = generator(mesh_case.seed * 16 + step);
    const std::vector<int64_t> sizes = {mesh_case.rows(), mesh_case.tokens};
    ids = torch::randint(mesh_case.vocab, sizes, numbers, torch::kLong);
    targets = torch::randint(mesh_case.vocab, sizes, numbers, torch::kLong);
    targets.masked_fill_(torch::rand(sizes, numbers) < 0.2, -100);
    targets.flatten()[0] = 0;  // one counts at least
    const torch::Tensor begins = torch::rand(sizes, numbers) < (mesh_case.has_documents ? 0.25 : 0.0);
    documents = begins.to(torch::kLong).cumsum(1);
  }
  int64_t num_targets() const { return targets.ne(-100).sum().item<int64_t>(); }
  torch::Tensor ids, targets, documents;
};

// In fp64, of this case's own numbers.
inline Weights draw_weights(const MeshCase& mesh_case) {
  const at::Generator numbers = generator(mesh_case.seed);
  Weights weights;
  const auto draw = [&](const std::string& name, std::vector<int64_t> sizes) {
    const double size = 1 / std::sqrt(static_cast<double>(sizes.back()));
    weights[name] = torch::randn(sizes, numbers, torch::kDouble) * size;
  };
  const int64_t width = mesh_case.width(), keys = mesh_case.kv_heads * mesh_case.head_dim;
  const auto norm = [&](const std::string& name) {
    weights[name + ".weight"] = torch::rand({width}, numbers, torch::kDouble) + 0.5;
    draw(name + ".bias", {width});
  };
  draw("embedding.weight", {mesh_case.vocab, width});
  draw("head.weight", {mesh_case.vocab, width});
  norm("norm");
  for (int64_t i = 0; i < mesh_case.layers; ++i) {
    const std::string block = c10::str("blocks.", i, ".");
    norm(block + "norm");
    norm(block + "inner_norm");
    for (const auto& [name, out] : {std::pair{"q", width}, {"k", keys}, {"v", keys}, {"o", width}}) {
      draw(block + name + ".weight", {out, width});
      draw(block + name + ".bias", {out});
    }
    if (mesh_case.experts > 0) {
      draw(block + "mixture.gate", {mesh_case.experts, width});
      draw(block + "mixture.experts.gate_up", {mesh_case.experts, 2 * mesh_case.inner, width});
      draw(block + "mixture.experts.down", {mesh_case.experts, width, mesh_case.inner});
      continue;
    }
    draw(block + "up.weight", {mesh_case.inner, width});
    draw(block + "up.bias", {mesh_case.inner});
    draw(block + "down.weight", {width, mesh_case.inner});
    draw(block + "down.bias", {width});
  }
  return weights;
}

// ---- the whole model, by its definition

inline torch::Tensor whole_mixture(const MeshCase& mesh_case, const Weights& weights, const std::string& name,
                                   const torch::Tensor& x) {
  const torch::Tensor scores = x.matmul(weights.at(name + "gate").t()).softmax(-1);
  const auto [best, chosen] = scores.topk(mesh_case.experts_per_token, -1);
  const torch::Tensor shares = torch::zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, true));
  torch::Tensor y = torch::zeros_like(x);
  for (int64_t expert = 0; expert < mesh_case.experts; ++expert) {
    const auto inner = x.matmul(weights.at(name + "experts.gate_up")[expert].t()).chunk(2, -1);
    const torch::Tensor result =
        (torch::silu(inner[0]) * inner[1]).matmul(weights.at(name + "experts.down")[expert].t());
    y = y + result * shares.select(-1, expert).unsqueeze(-1);
  }
  return y;
}

// Sum over the targets.
inline torch::Tensor whole_loss(const MeshCase& mesh_case, const Weights& weights, const MeshBatch& batch) {
  const auto linear = [&](const std::string& name, const torch::Tensor& x) {
    return torch::linear(x, weights.at(name + ".weight"), weights.at(name + ".bias"));
  };
  const auto norm = [&](const std::string& name, const torch::Tensor& x) {
    return torch::layer_norm(x, {mesh_case.width()}, weights.at(name + ".weight"), weights.at(name + ".bias"));
  };
  const auto heads = [&](const torch::Tensor& x) { return x.unflatten(-1, {-1, mesh_case.head_dim}); };
  torch::Tensor sees = batch.documents.unsqueeze(2).eq(batch.documents.unsqueeze(1)).tril();
  if (mesh_case.window > 0) sees = sees.logical_and(torch::ones_like(sees).triu(1 - mesh_case.window));
  const int64_t group = mesh_case.heads / mesh_case.kv_heads;
  torch::Tensor x = torch::embedding(weights.at("embedding.weight"), batch.ids);
  for (int64_t i = 0; i < mesh_case.layers; ++i) {
    const std::string block = c10::str("blocks.", i, ".");
    const torch::Tensor given = norm(block + "norm", x);
    const torch::Tensor q = heads(linear(block + "q", given)),
                        k = heads(linear(block + "k", given)).repeat_interleave(group, 2),
                        v = heads(linear(block + "v", given)).repeat_interleave(group, 2);
    const torch::Tensor scores =
        torch::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(static_cast<double>(mesh_case.head_dim));
    const torch::Tensor shares = scores.masked_fill(sees.unsqueeze(1).logical_not(), -INFINITY).softmax(-1);
    x = x + linear(block + "o", torch::einsum("bhts,bshd->bthd", {shares, v}).flatten(2));
    const torch::Tensor inner = norm(block + "inner_norm", x);
    x = x + (mesh_case.experts > 0 ? whole_mixture(mesh_case, weights, block + "mixture.", inner)
                                   : linear(block + "down", torch::gelu(linear(block + "up", inner))));
  }
  const torch::Tensor logits = norm("norm", x).matmul(weights.at("head.weight").t());
  return torch::cross_entropy_loss(logits.flatten(0, 1), batch.targets.flatten(), {}, at::Reduction::Sum);
}

// ---- a rank's stages

struct MeshBlock : torch::nn::Module {
  MeshBlock(const MeshCase& mesh_case, const Mesh& mesh, const std::string& layer)
      : head_dim(mesh_case.head_dim), in_ring(mesh_case.in_ring), cp(parallel::Ranks::along(mesh, "cp")), layer(layer) {
    const int64_t width = mesh_case.width(), keys = mesh_case.kv_heads * mesh_case.head_dim;
    for (auto* each : {&norm, &inner_norm}) *each = torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
    register_module("norm", norm);
    register_module("inner_norm", inner_norm);
    q = register_module("q", parallel::Linear(width, width));
    k = register_module("k", parallel::Linear(width, keys));
    v = register_module("v", parallel::Linear(width, keys));
    o = register_module("o", parallel::Linear(width, width));
    if (mesh_case.experts > 0) {
      parallel::MixtureOptions options{mesh_case.experts, width, mesh_case.inner, {}, layer};
      options.router.experts_per_token = mesh_case.experts_per_token;
      mixture = register_module("mixture", parallel::Mixture(options, mesh));
    } else {
      up = register_module("up", parallel::Linear(width, mesh_case.inner));
      down = register_module("down", parallel::Linear(mesh_case.inner, width));
    }
  }

  torch::Tensor forward(const torch::Tensor& x, const parallel::ContextView& view, const torch::Tensor& mask) {
    const torch::Tensor given = norm(x);
    const auto heads = [&](const torch::Tensor& y) { return y.unflatten(-1, {-1, head_dim}); };
    const torch::Tensor queries = heads(q(given)), keys = heads(k(given)), values = heads(v(given));
    const torch::Tensor read = in_ring ? parallel::ring_attention(queries, keys, values, view, cp, layer)
                                       : parallel::context_attention(queries, keys, values, mask, cp, layer);
    const torch::Tensor h = x + o(read.flatten(2));
    const torch::Tensor inner = inner_norm(h);
    return h + (mixture ? mixture(inner) : down(torch::gelu(up(inner))));
  }

  int64_t head_dim;
  bool in_ring;
  std::shared_ptr<parallel::Ranks> cp;
  std::string layer;
  torch::nn::LayerNorm norm{nullptr}, inner_norm{nullptr};
  parallel::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, up{nullptr}, down{nullptr};
  parallel::Mixture mixture{nullptr};
};

// Blocks [first, last) of the model, and what belongs to its ends.
struct MeshPart : torch::nn::Module {
  MeshPart(const MeshCase& mesh_case, const Mesh& mesh, int64_t first, int64_t last)
      : first(first),
        window(mesh_case.window),
        cp(parallel::Ranks::along(mesh, "cp")),
        tp(parallel::Ranks::along(mesh, "tp")),
        blocks(torch::nn::ModuleList()) {
    const parallel::Tokens tokens = mesh_case.tokens_between;
    if (first == 0) {
      embedding =
          register_module("embedding", parallel::VocabEmbedding(mesh_case.vocab, mesh_case.width(), mesh,
                                                                parallel::EmbeddingOptions{tokens, "embedding"}));
    }
    register_module("blocks", blocks);
    for (int64_t i = first; i < last; ++i) {
      blocks->push_back(std::make_shared<MeshBlock>(mesh_case, mesh, c10::str("blocks.", i)));
    }
    if (last == mesh_case.layers) {
      norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({mesh_case.width()})));
      head = register_module("head", parallel::ColumnLinear(mesh_case.width(), mesh_case.vocab, mesh,
                                                            parallel::LinearOptions{false, tokens, "head"}));
    }
    using parallel::Style;
    parallel::Plan plan = {{"blocks.*.[qkv]", Style::kColumn}, {"blocks.*.o", Style::kRow}};
    if (mesh_case.experts == 0) {
      plan.insert(plan.end(), {{"blocks.*.up", Style::kColumn}, {"blocks.*.down", Style::kRow}});
    }
    if (tokens == parallel::Tokens::kOwn) {
      plan.emplace_back("*norm", Style::kTokens);
      if (mesh_case.experts > 0) plan.emplace_back("blocks.*.mixture", Style::kTokens);
    }
    parallelize(*this, plan, mesh, tokens);
  }

  // ids [B, T/cp] where the model begins, else what the stage before returned; documents [B, T]. The last stage returns
  // logits.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& documents) {
    if (embedding) x = embedding(x);
    const parallel::ContextView view = {documents, window};
    const torch::Tensor mask = parallel::context_mask(documents.size(1), view, *cp, x.options());
    for (const auto& block : *blocks) x = block->as<MeshBlock>()->forward(x, view, mask);
    return head ? head(norm(x)) : x;
  }
  // Sum over the targets [B, T/cp].
  torch::Tensor loss(const torch::Tensor& logits, const torch::Tensor& targets) const {
    return parallel::vocab_cross_entropy(logits.flatten(0, 1), targets.flatten(), tp).sum();
  }
  // COLLECTIVE.
  Unit shard(const MeshCase& mesh_case, const Mesh& mesh) {
    const Mesh of_experts = mesh.flattened({"shard", "cp"}, "shard"),
               of_rest = mesh.flattened({"shard", "cp", "ep"}, "shard");
    for (const auto& block : *blocks) {
      if (mesh_case.experts > 0) fully_shard(*block->as<MeshBlock>()->mixture->experts, of_experts, mesh_case.options);
      if (mesh_case.shards_blocks) fully_shard(*block, of_rest, mesh_case.options);
    }
    return fully_shard(*this, of_rest, mesh_case.options);
  }

  int64_t first, window;
  std::shared_ptr<parallel::Ranks> cp, tp;
  parallel::VocabEmbedding embedding{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  parallel::ColumnLinear head{nullptr};
};

}  // namespace fsdp::testing
