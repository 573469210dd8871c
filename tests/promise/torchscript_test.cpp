// TorchScript modules are sharded like any other, also once the profiling executor rewrites their graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include <sstream>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::torchscript_test {
namespace {

using testing::batch;
using testing::error_of;
using testing::generator;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::share_of;

constexpr int kSteps = 6;
constexpr double kLearningRate = 0.05;

// A file as torch.jit.save writes it: two linear layers as children of a root that has a weight of its own.
torch::jit::Module make_layer(const std::string& name, int64_t in, int64_t out, uint64_t seed) {
  torch::jit::Module layer(name);
  layer.register_parameter("weight", (torch::randn({out, in}, generator(seed)) * 0.4).requires_grad_(), false);
  layer.register_parameter("bias", (torch::randn({out}, generator(seed + 1)) * 0.1).requires_grad_(), false);
  layer.define("def forward(self, x):\n  return torch.tanh(torch.linear(x, self.weight, self.bias))\n");
  return layer;
}

std::string make_script() {
  torch::jit::Module root("root");
  root.register_parameter("scale", torch::randn({7}, generator(11)).requires_grad_(), false);
  root.register_module("first", make_layer("first", 5, 9, 21));
  root.register_module("second", make_layer("second", 9, 7, 31));
  root.define(R"(
def forward(self, x):
  y = torch.zeros_like(x)
  for i in range(2):
    y = self.second.forward(self.first.forward(x)) + 0.5 * i
  return y * self.scale
)");
  std::ostringstream file;
  root.save(file);
  return file.str();
}

torch::jit::Module load(const std::string& file) {
  std::istringstream in(file);
  torch::jit::Module module = torch::jit::load(in);
  module.train();
  return module;
}

std::vector<torch::Tensor> plain_parameters(const torch::jit::Module& module) {
  std::vector<torch::Tensor> list;
  for (const auto& parameter : module.parameters()) list.push_back(parameter);
  return list;
}

torch::Tensor loss_of(torch::jit::Module& module, const torch::Tensor& rows) {
  return module.forward({rows}).toTensor().square().mean();
}

void expect_same_slices(const torch::jit::Module& sharded, const torch::jit::Module& plain) {
  const auto leaves = named_parameters(sharded);
  const auto expected = plain_parameters(plain);
  ASSERT_EQ(leaves.size(), expected.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& [name, leaf] = leaves[i];
    const LocalRange range = local_range(leaf);
    EXPECT_TRUE(torch::allclose(leaf, expected[i].flatten().slice(0, range.begin, range.end), 1e-4, 1e-5)) << name;
  }
}

void train_and_compare(const World& world, const std::string& file, const ShardOptions& options) {
  torch::jit::Module sharded = load(file);
  torch::jit::Module plain = load(file);
  const Mesh mesh = Mesh::shard(world);
  for (const char* child : {"first", "second"}) {
    torch::jit::Module layer = sharded.attr(child).toModule();
    fully_shard(layer, mesh, options);
  }
  const Unit root = fully_shard(sharded, mesh, options);
  AdamW optimizer(parameters(sharded), {.lr = kLearningRate});
  torch::optim::AdamW plain_optimizer(plain_parameters(plain), kLearningRate);
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows = batch(static_cast<uint64_t>(step));
    const torch::Tensor loss = loss_of(sharded, share_of(world, rows));
    loss.backward();
    const torch::Tensor expected = loss_of(plain, rows);
    expected.backward();
    EXPECT_NEAR(sum_over_ranks(world, loss).item<double>() / world.size, expected.item<double>(), 1e-5)
        << "step " << step;
    EXPECT_EQ(root.counters().resident_unsharded_bytes, 0) << "step " << step;
    optimizer.step();
    plain_optimizer.step();
    zero_grad(sharded);
    plain_optimizer.zero_grad();
  }
  EXPECT_EQ(root.num_units(), 3);
  expect_same_slices(sharded, plain);
}

TEST(TorchScript, AFileTrainsLikeTheUnshardedOne) {
  const std::string file = make_script();
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    ShardOptions options;
    options.strategy = strategy;
    run_ranks(2, [&](const World& world) { train_and_compare(world, file, options); });
  }
  run_ranks(3, [&](const World& world) { train_and_compare(world, file, {}); });
}

// What the executor may fuse if it is asked to, it must not: a fused kernel would read weights that nobody gathered.
TEST(TorchScript, TrainsAlsoWhereTheProgramAskedForFusion) {
  torch::jit::setTensorExprFuserEnabled(true);
  torch::jit::overrideCanFuseOnCPU(true);
  run_ranks(2, [file = make_script()](const World& world) { train_and_compare(world, file, {}); });
  EXPECT_FALSE(torch::jit::tensorExprFuserEnabled());
  torch::jit::overrideCanFuseOnCPU(false);
}

TEST(TorchScript, FrozenModulesAreRefused) {
  run_ranks(1, [](const World& world) {
    torch::jit::Module module = load(make_script());
    module.eval();
    torch::jit::Module frozen = torch::jit::freeze(module);
    EXPECT_THAT(error_of([&] { fully_shard(frozen, Mesh::shard(world)); }), HasSubstr("freeze"));
  });
}

// What freeze() makes of a sharded model has its parameters for constants. They are the same tensors, so it is seen
// what reads them, and it follows the training.
TEST(TorchScript, AModelThatIsFrozenAfterShardingGivesTheOutputsOfItsTwin) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      torch::jit::Module sharded = load(make_script()), twin = load(make_script());
      const Unit root = fully_shard(sharded, Mesh::shard(world));
      SGD optimizer(parameters(sharded), {.lr = kLearningRate});
      torch::optim::SGD twins(plain_parameters(twin), kLearningRate);
      loss_of(sharded, share_of(world, batch(1))).backward();
      loss_of(twin, batch(1)).backward();
      optimizer.step();
      twins.step();
      zero_grad(sharded);
      sharded.eval();
      twin.eval();
      const torch::NoGradGuard no_grad;
      const auto compare = [&](torch::jit::Module& frozen) {
        const torch::Tensor rows = batch(2);
        const torch::Tensor got = frozen.forward({rows}).toTensor(), want = twin.forward({rows}).toTensor();
        EXPECT_TRUE(torch::allclose(got, want, 1e-4, 1e-5));
      };
      torch::jit::Module frozen = torch::jit::freeze(sharded);
      for (int pass = 0; pass < 3; ++pass) compare(frozen);  // the executor rewrites its graph meanwhile
      EXPECT_EQ(error_of([&] { zero_grad(sharded); }), "no error");
      compare(sharded);
    });
  }
}

}  // namespace
}  // namespace fsdp::torchscript_test
