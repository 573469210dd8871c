#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::testing {

// A model whose files are compared: plain torch::nn.
struct ArchiveModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::shared_ptr<torch::nn::Module>> units;         // inner modules to shard, besides the root
  std::vector<torch::Tensor> ignored;                            // parameters that are not sharded
  std::function<torch::Tensor(const torch::Tensor& rows)> loss;  // rows [n, kArchiveFeatures]; the mean over them
};

inline constexpr int64_t kArchiveFeatures = 36;

struct ArchiveCase {
  std::string name;
  std::function<ArchiveModel()> make;
};

// Layers in a row; nested units; convolutions with BatchNorm, an ignored and a frozen parameter; a weight with two
// names; parameters so small that some shards are empty.
const std::vector<ArchiveCase>& archive_cases();
const ArchiveCase& archive_case(const std::string& name);

// How a model is sharded.
struct Sharding {
  Strategy strategy = Strategy::kOptimGradsParams;
  int ranks = 2;
  int replicas = 1;
  Precision precision;

  std::string text() const;
};

// A model of that seed, sharded; in evaluation mode, where the mean over ranks is that of the whole batch.
struct ShardedModel {
  ArchiveModel model;
  Unit root;
};
ArchiveModel make_model(const ArchiveCase& archive_case, uint64_t seed);
ShardedModel make_sharded(const ArchiveCase& archive_case, uint64_t seed, const Sharding& sharding, const World& world);

// A tied weight once.
std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module);

// Multiplies every weight, so that none is what it was when the model was sharded.
void scale_weights(const ArchiveModel& model, double factor);
void scale_leaves(const ArchiveModel& model, double factor);

// Every leaf of `sharded` holds its slice of the parameter of that name in `whole`, and its buffers are the same.
void expect_same_values(const torch::nn::Module& sharded, const torch::nn::Module& whole, double tolerance = 0);

}  // namespace fsdp::testing
