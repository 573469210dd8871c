#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::testing {

// The model that docs/one_step.md walks through: a root that reads weights of its own first and last, and blocks
// `layers.0`, `layers.1`, ... between them. Plain torch::nn.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width);
  torch::Tensor forward(const torch::Tensor& x);
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};

struct BlockModel : torch::nn::Module {
  static constexpr int64_t kFeatures = 5;
  static constexpr int64_t kWidth = 6;

  explicit BlockModel(int num_blocks);
  torch::Tensor forward(torch::Tensor x);
  BlockImpl& block(size_t i) { return layers->at<BlockImpl>(i); }
  torch::nn::Linear inlet{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear outlet{nullptr};
};

inline constexpr uint64_t kModelSeed = 40961;

// Same weights on every call.
std::shared_ptr<BlockModel> make_block_model(int num_blocks = 3);

// The model and its units: one for each block and the root.
struct ShardedBlocks {
  std::shared_ptr<BlockModel> module;
  std::vector<Unit> blocks;
  Unit root;
};
ShardedBlocks shard_blocks(const World& world, const ShardOptions& options = {}, int num_blocks = 3);
ShardedBlocks shard_blocks(const Mesh& mesh, const ShardOptions& options, int num_blocks = 3);

// Elements of one of `ranks` shards of the root's and of a block's parameters, by arithmetic of the tests' own: tensors
// start at multiples of `align` elements, and so does every shard's end.
int64_t root_shard_numel(int64_t ranks, int64_t align = 4);
int64_t block_shard_numel(int64_t ranks, int64_t align = 4);

// Input rows, the same for the same seed; and the part of them that this rank computes.
torch::Tensor batch(uint64_t seed, int64_t rows = 12, int64_t features = BlockModel::kFeatures);
torch::Tensor share_of(const World& world, const torch::Tensor& rows);

// The mean over rows, so that the mean over ranks of equal shares is the loss of the whole batch.
torch::Tensor loss_of(BlockModel& model, const torch::Tensor& rows);

// Every leaf of `sharded` holds its slice of the parameter of the same name in `reference`, an ignored parameter all of
// it, within `tolerance`.
void expect_same_weights(const torch::nn::Module& sharded, const torch::nn::Module& reference, double tolerance = 1e-5);
// Likewise the gradients; undefined where the reference's is.
void expect_same_gradients(const torch::nn::Module& sharded, const torch::nn::Module& reference,
                           double tolerance = 1e-5);

// Text of the fsdp::Error that `function` throws; "no error" if it throws none.
template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::testing
