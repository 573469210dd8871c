// A small model, whole or as stages: an inlet, blocks, an outlet. TiedWeights, the outlet uses the inlet's weight.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {

inline constexpr int64_t kStagedWidth = 10, kStagedIn = 6, kStagedBlocks = 8;

struct StagedBlock : torch::nn::Module {
  StagedBlock() {
    up = register_module("up", torch::nn::Linear(kStagedWidth, 2 * kStagedWidth));
    down = register_module("down", torch::nn::Linear(2 * kStagedWidth, kStagedWidth));
    gain = register_buffer("gain", torch::rand({1}) + 0.5);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + gain * down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::Tensor gain;
};

// A linear map that may be used in both directions.
struct StagedMap : torch::nn::Module {
  StagedMap() { weight = register_parameter("weight", torch::randn({kStagedIn, kStagedWidth}) / 3); }
  torch::Tensor weight;
};

enum class TiedWeights { kNo, kYes };

// Blocks [first, last) of the model, and what belongs to its ends.
struct StagedPart : torch::nn::Module {
  StagedPart(int64_t first, int64_t last, TiedWeights tied)
      : first(first), ends_here(last == kStagedBlocks), tied(tied), blocks(torch::nn::ModuleList()) {
    const bool needs_inlet = first == 0 || (ends_here && tied == TiedWeights::kYes);
    if (needs_inlet) inlet = register_module("inlet", std::make_shared<StagedMap>());
    register_module("blocks", blocks);
    for (int64_t i = first; i < last; ++i) blocks->push_back(std::make_shared<StagedBlock>());
    if (!ends_here) return;
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kStagedWidth})));
    if (tied == TiedWeights::kNo) outlet = register_module("outlet", std::make_shared<StagedMap>());
  }
  // Rows of kStagedIn numbers at the ends of the model, of kStagedWidth between stages.
  torch::Tensor forward(torch::Tensor x) {
    if (first == 0) x = x.matmul(inlet->weight);
    for (const auto& block : *blocks) x = block->as<StagedBlock>()->forward(x);
    return ends_here ? norm(x).matmul((outlet ? outlet : inlet)->weight.t()) : x;
  }
  pipeline::Naming naming() const { return pipeline::numbered_from("blocks.", first); }

  int64_t first;
  bool ends_here;
  TiedWeights tied;
  std::shared_ptr<StagedMap> inlet, outlet;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
};

inline std::shared_ptr<StagedPart> make_whole_staged(at::ScalarType dtype, TiedWeights tied) {
  auto whole = make_seeded(31, [&] { return std::make_shared<StagedPart>(0, kStagedBlocks, tied); });
  whole->to(dtype);
  return whole;
}

// This rank's stages of the whole model, with its weights, and what a program has of them: stage s of `ranks` x
// `stages_per_rank` is on the rank with coordinate s % ranks.
struct StagedModel {
  StagedModel(const Mesh& mesh, int stages_per_rank, at::ScalarType dtype, TiedWeights tied) {
    const auto whole = make_whole_staged(dtype, tied);
    const auto values = whole->named_parameters();
    const auto constants = whole->named_buffers();
    const int ranks = mesh.size("pp"), stages = ranks * stages_per_rank;
    for (int stage = mesh.index("pp"); stage < stages; stage += ranks) {
      const int64_t first = kStagedBlocks * stage / stages, last = kStagedBlocks * (stage + 1) / stages;
      const auto part = make_seeded(32, [&] { return std::make_shared<StagedPart>(first, last, tied); });
      part->to(dtype);
      const torch::NoGradGuard no_grad;
      const pipeline::Naming naming = part->naming();
      for (const auto& item : part->named_parameters()) item.value().copy_(values[naming(item.key())]);
      for (const auto& item : part->named_buffers()) item.value().copy_(constants[naming(item.key())]);
      parts.push_back(part);
      module->push_back(part);
    }
  }
  // COLLECTIVE. A weight that two stages have is a unit of its own, so that both cut it alike.
  void shard(const Mesh& mesh, const ShardOptions& options) {
    for (const auto& part : parts) {
      if (part->inlet && part->tied == TiedWeights::kYes) fully_shard(*part->inlet, mesh, options);
      for (const auto& block : *part->blocks) fully_shard(*block, mesh, options);
      stages.push_back(pipeline::stage_of(part, fully_shard(*part, mesh, options), part->naming()));
    }
  }
  std::vector<at::Tensor> leaves() const { return parameters(*module); }

  std::vector<std::shared_ptr<StagedPart>> parts;
  torch::nn::ModuleList module;  // all of them: what a checkpoint is given
  std::vector<pipeline::Stage> stages;
};

// Rows and targets of a step, of all ranks.
inline std::pair<torch::Tensor, torch::Tensor> staged_batch(int step, int64_t rows, at::ScalarType dtype) {
  const at::Generator numbers = generator(400 + static_cast<uint64_t>(step));
  const auto draw = [&] { return torch::randn({rows, kStagedIn}, numbers).to(dtype); };
  const torch::Tensor inputs = draw();
  return {inputs, draw()};
}

}  // namespace fsdp::testing
