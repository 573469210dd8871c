#include "tests/promise/models/block_model.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;

void expect_within(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance,
                   const std::string& name) {
  ASSERT_EQ(actual.numel(), expected.numel()) << name;
  if (actual.numel() == 0) return;
  const double difference = (actual.detach().flatten() - expected.detach()).abs().max().item<double>();
  EXPECT_TRUE(difference <= tolerance) << name << ": differs by " << difference;
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t shard_numel(const std::vector<int64_t>& numels, int64_t ranks, int64_t align) {
  int64_t end = 0;
  for (const int64_t numel : numels) end = round_up(end, align) + numel;
  return round_up(round_up(end, align) / align, ranks) / ranks * align;
}

torch::Tensor slice_of(const torch::Tensor& whole, const LocalRange& range) {
  return whole.detach().flatten().slice(0, range.begin, range.end);
}

}  // namespace

BlockImpl::BlockImpl(int64_t width) {
  up = register_module("up", nn::Linear(width, 3 * width));
  down = register_module("down", nn::Linear(3 * width, width));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) { return x + down(torch::tanh(up(x))); }

BlockModel::BlockModel(int num_blocks) {
  inlet = register_module("inlet", nn::Linear(kFeatures, kWidth));
  layers = register_module("layers", nn::ModuleList());
  for (int i = 0; i < num_blocks; ++i) layers->push_back(std::make_shared<BlockImpl>(kWidth));
  outlet = register_module("outlet", nn::Linear(kWidth, 3));
}

torch::Tensor BlockModel::forward(torch::Tensor x) {
  x = inlet(x);
  for (const auto& layer : *layers) x = layer->as<BlockImpl>()->forward(x);
  return outlet(x);
}

std::shared_ptr<BlockModel> make_block_model(int num_blocks) {
  return make_seeded(kModelSeed, [&] { return std::make_shared<BlockModel>(num_blocks); });
}

ShardedBlocks shard_blocks(const World& world, const ShardOptions& options, int num_blocks) {
  return shard_blocks(Mesh::shard(world), options, num_blocks);
}

ShardedBlocks shard_blocks(const Mesh& mesh, const ShardOptions& options, int num_blocks) {
  const auto module = make_block_model(num_blocks);
  std::vector<Unit> blocks;
  for (const auto& layer : *module->layers) blocks.push_back(fully_shard(*layer, mesh, options));
  return {module, blocks, fully_shard(*module, mesh, options)};
}

int64_t root_shard_numel(int64_t ranks, int64_t align) { return shard_numel({6 * 5, 6, 3 * 6, 3}, ranks, align); }

int64_t block_shard_numel(int64_t ranks, int64_t align) { return shard_numel({18 * 6, 18, 6 * 18, 6}, ranks, align); }

torch::Tensor batch(uint64_t seed, int64_t rows, int64_t features) {
  return torch::randn({rows, features}, generator(seed));
}

torch::Tensor share_of(const World& world, const torch::Tensor& rows) {
  const int64_t share = rows.size(0) / world.size;
  return rows.narrow(0, world.rank * share, share);
}

torch::Tensor loss_of(BlockModel& model, const torch::Tensor& rows) { return model.forward(rows).square().mean(); }

void expect_same_weights(const nn::Module& sharded, const nn::Module& reference, double tolerance) {
  const auto expected = reference.named_parameters();
  for (const auto& [name, leaf] : named_parameters(sharded)) {
    expect_within(leaf, slice_of(expected[name], local_range(leaf)), tolerance, name);
  }
}

void expect_same_gradients(const nn::Module& sharded, const nn::Module& reference, double tolerance) {
  const auto expected = reference.named_parameters();
  for (const auto& [name, leaf] : named_parameters(sharded)) {
    const torch::Tensor gradient = expected[name].grad();
    ASSERT_EQ(leaf.grad().defined(), gradient.defined()) << name;
    if (gradient.defined()) expect_within(leaf.grad(), slice_of(gradient, local_range(leaf)), tolerance, name);
  }
}

}  // namespace fsdp::testing
