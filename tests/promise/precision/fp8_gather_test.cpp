// Weights that travel as fp8 numbers (Precision::gather): half the bytes, and not a bit of a difference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::fp8_gather_test {
namespace {

using testing::batch;
using testing::error_of;
using testing::for_strategies;
using testing::for_worlds;
using testing::global_generator_mutex;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::share_of;

constexpr Fp8Recipe kRecipesToSend[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kBlockwise};

struct Tower : torch::nn::Module {
  Tower() {
    inlet = register_module("inlet", torch::nn::Linear(5, 128));
    up = register_module("up", torch::nn::Linear(128, 384));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(384, 128).bias(false)));
    outlet = register_module("outlet", torch::nn::Linear(128, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return outlet(torch::gelu(down(torch::gelu(up(inlet(x)))))); }

  torch::nn::Linear inlet{nullptr}, up{nullptr}, down{nullptr}, outlet{nullptr};
};

std::shared_ptr<Tower> make_tower(Fp8Recipe recipe) {
  std::shared_ptr<Tower> tower;
  {
    const std::scoped_lock lock(global_generator_mutex);
    torch::manual_seed(23);
    tower = std::make_shared<Tower>();
  }
  fp8(*tower, recipe);
  return tower;
}

enum class Travel { kAsBf16, kAsFp8 };

ShardOptions options_for(Travel travel, ShardOptions options = {}) {
  options.precision = Precision::bf16();
  if (travel == Travel::kAsFp8) options.precision.gather = at::kFloat8_e4m3fn;
  return options;
}

struct Sharded {
  std::shared_ptr<Tower> module;
  Unit root;
};

Sharded shard(const Mesh& mesh, Fp8Recipe recipe, const ShardOptions& options) {
  auto tower = make_tower(recipe);
  fully_shard(*tower->up, mesh, options);
  fully_shard(*tower->down, mesh, options);
  const Unit root = fully_shard(*tower, mesh, options);
  return {tower, root};
}

torch::Tensor rows_of(const World& world, int step) {
  return share_of(world, batch(static_cast<uint64_t>(step), 12, 5)).to(torch::kBFloat16);
}

template <class Optimizer>
torch::Tensor train_step(const Sharded& model, Optimizer& optimizer, const World& world, int step) {
  zero_grad(*model.module);
  const torch::Tensor loss = model.module->forward(rows_of(world, step)).square().mean();
  loss.backward();
  optimizer.step();
  return loss.detach();
}

// Of whole main weights: units that travel otherwise are cut otherwise.
void expect_same_bits(torch::nn::Module& a, torch::nn::Module& b) {
  const auto ours = full_state_dict(a).tensors, theirs = full_state_dict(b).tensors;
  for (const auto& [name, tensor] : theirs) EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
}

void expect_same_training(const Mesh& mesh, const World& world, Fp8Recipe recipe, const ShardOptions& options) {
  const Sharded wide = shard(mesh, recipe, options_for(Travel::kAsBf16, options));
  const Sharded narrow = shard(mesh, recipe, options_for(Travel::kAsFp8, options));
  AdamW ours(parameters(*narrow.module), {.lr = 0.01}), theirs(parameters(*wide.module), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor expected = train_step(wide, theirs, world, step);
    EXPECT_TRUE(torch::equal(train_step(narrow, ours, world, step), expected)) << step;
    expect_same_bits(*narrow.module, *wide.module);
  }
}

TEST(Fp8Gather, HasTheBitsOfBf16GathersForEveryStrategy) {
  for (const Fp8Recipe recipe : kRecipesToSend) {
    SCOPED_TRACE(kernels::name(recipe));
    for_strategies([&](const World& world, const ShardOptions& options) {
      expect_same_training(Mesh(world, {{"shard", world.size}}), world, recipe, options);
    });
  }
}

TEST(Fp8Gather, HasTheBitsOfBf16GathersWithReplicas) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    ShardOptions options;
    options.strategy = strategy;
    run_ranks(4, [&](const World& world) {
      expect_same_training(Mesh(world, {{"replicate", 2}, {"shard", 2}}), world, Fp8Recipe::kBlockwise, options);
    });
  }
}

TEST(Fp8Gather, HasTheBitsOfTheUnshardedModel) {
  for (const Fp8Recipe recipe : kRecipesToSend) {
    for_worlds([&](const World& world) {
      const Sharded sharded = shard(Mesh::shard(world), recipe, options_for(Travel::kAsFp8));
      const auto twin = make_tower(recipe);
      twin->to(torch::kBFloat16);
      const torch::Tensor x = batch(1, 12, 5).to(torch::kBFloat16);
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal(sharded.module->forward(x), twin->forward(x))) << kernels::name(recipe);
    });
  }
}

// Optimizers of LibTorch, weights in fp32, a forward that is not reduced, and a mesh of one.
TEST(Fp8Gather, HasTheBitsOfFp32GathersWithOtherOptimizers) {
  for_worlds([](const World& world) {
    ShardOptions wide, narrow;
    narrow.precision.gather = at::kFloat8_e4m3fn;
    const Sharded a = shard(Mesh::shard(world), Fp8Recipe::kTensorwise, wide);
    const Sharded b = shard(Mesh::shard(world), Fp8Recipe::kTensorwise, narrow);
    torch::optim::SGD theirs(parameters(*a.module), 0.1), ours(parameters(*b.module), 0.1);
    for (int step = 0; step < 3; ++step) {
      for (const auto& [model, optimizer] : {std::pair{&a, &theirs}, {&b, &ours}}) {
        zero_grad(*model->module);
        const torch::Tensor rows = share_of(world, batch(static_cast<uint64_t>(step), 12, 5));
        model->module->forward(rows).square().mean().backward();
        optimizer->step();
      }
      expect_same_bits(*b.module, *a.module);
    }
  });
}

Counters counters_of_a_step(const World& world, Travel travel, Fp8Recipe recipe) {
  const Sharded model = shard(Mesh::shard(world), recipe, options_for(travel));
  AdamW optimizer(parameters(*model.module), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    Unit(model.root).reset_counters();
    train_step(model, optimizer, world, step);
  }
  return model.root.counters();
}

TEST(Fp8Gather, MovesHalfTheBytesAndAgreesOnceAStep) {
  for (const Fp8Recipe recipe : kRecipesToSend) {
    for (const int size : {2, 3}) {
      run_ranks(size, [&](const World& world) {
        const Counters wide = counters_of_a_step(world, Travel::kAsBf16, recipe);
        const Counters narrow = counters_of_a_step(world, Travel::kAsFp8, recipe);
        if (wide.gather_bytes == 0) return;  // ranks that share one copy send nothing
        EXPECT_LE(static_cast<double>(narrow.gather_bytes), 0.52 * static_cast<double>(wide.gather_bytes));
        EXPECT_EQ(narrow.scale_agreements, 1);
        EXPECT_EQ(wide.scale_agreements, 0);
        EXPECT_EQ(narrow.reduce_bytes, wide.reduce_bytes);
      });
    }
  }
}

// Of all ranks' parts, as bf16 and fp32 hold them.
double num_changed(const World& world, const torch::nn::Module& module, const std::vector<torch::Tensor>& before) {
  const auto leaves = parameters(module);
  torch::Tensor changed = torch::zeros({1}, torch::kDouble);
  for (size_t i = 0; i < leaves.size(); ++i) changed += leaves[i].detach().ne(before[i]).sum();
  return sum_over_ranks(world, changed).item<double>();
}

TEST(Fp8Gather, WritesThroughFullParametersKeepTheOthersDigits) {
  for_worlds([](const World& world) {
    const Sharded model = shard(Mesh::shard(world), Fp8Recipe::kBlockwise, options_for(Travel::kAsFp8));
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& leaf : parameters(*model.module)) before.push_back(leaf.detach().clone());
    {
      const FullParameters scope = full_parameters(model.root, WriteBack::kYes);
      const torch::NoGradGuard no_grad;
      model.module->up->weight[7][9] = 0.75;
    }
    EXPECT_EQ(num_changed(world, *model.module, before), 1);
    const FullParameters scope = full_parameters(model.root);
    EXPECT_EQ(model.module->up->weight[7][9].item<float>(), 0.75F);
  });
}

TEST(Fp8Gather, IsRefusedByName) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh = Mesh::shard(world);
    const auto rowwise = make_tower(Fp8Recipe::kRowwise);
    EXPECT_THAT(error_of([&] { fully_shard(*rowwise, mesh, options_for(Travel::kAsFp8)); }),
                HasSubstr("got kFloat8_e4m3fn for 'up.weight' of recipe rowwise"));
    ShardOptions odd;
    odd.precision.gather = at::kBFloat16;
    EXPECT_THAT(error_of([&] { fully_shard(*rowwise, mesh, odd); }), HasSubstr("expected kFloat8_e4m3fn, or unset"));
    const auto fixed = make_tower(Fp8Recipe::kTensorwise);
    fully_shard(*fixed, mesh, options_for(Travel::kAsFp8));
    if (testing::one_copy_of_weights()) return;  // nothing travels
    EXPECT_THAT(error_of([&] { fp8(*fixed, Fp8Recipe::kRowwise); }),
                HasSubstr("layer up: got rowwise for a weight that travels as fp8 numbers of tensorwise"));
    EXPECT_THAT(error_of([&] { fp8(*fixed, Fp8Recipe::kTensorwise); }), HasSubstr("no error"));
  });
}

}  // namespace
}  // namespace fsdp::fp8_gather_test
