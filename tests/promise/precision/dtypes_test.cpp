// Dtypes of what is neither gathered nor sent: buffers, main grads, moments of AdamW.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::dtypes_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::error_of;
using testing::for_strategies;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

ShardOptions with(const Precision& precision) {
  ShardOptions options;
  options.precision = precision;
  return options;
}

// ---- Precision::buffers

struct Inner : torch::nn::Module {
  Inner() {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    shift = register_buffer("shift", torch::full({4}, 1.001F));
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor shift;
};

struct WithBuffers : torch::nn::Module {
  WithBuffers() {
    inner = register_module("inner", std::make_shared<Inner>());
    linear = register_module("linear", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    table = register_buffer("table", torch::full({4}, 0.3F));
    count = register_buffer("count", torch::full({1}, 3, torch::kLong));
    const torch::NoGradGuard no_grad;  // no generator: ranks may be threads, which share it
    for (torch::Tensor& weight : parameters()) weight.copy_(torch::arange(weight.numel()).view(weight.sizes()) * 0.1);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return norm(linear(inner->linear(x) + inner->shift) + table.to(torch::kFloat));
  }
  std::shared_ptr<Inner> inner;
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor table, count;
};

Precision bf16_buffers() {
  Precision precision;
  precision.buffers = at::kBFloat16;
  return precision;
}

torch::Tensor rounded(const torch::Tensor& tensor) { return tensor.to(torch::kBFloat16).to(torch::kFloat); }

TEST(BufferDtype, BuffersAreCastWhereTheirUnitSaysSo) {
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        WithBuffers module;
        ShardOptions plain = options;
        plain.precision = {};
        fully_shard(*module.inner, Mesh::shard(world), plain);
        fully_shard(module, Mesh::shard(world), options);
        EXPECT_EQ(module.table.scalar_type(), torch::kBFloat16);
        EXPECT_EQ(module.named_buffers()["table"].scalar_type(), torch::kBFloat16);
        EXPECT_EQ(module.count.scalar_type(), torch::kLong);
        EXPECT_EQ(module.inner->shift.scalar_type(), torch::kFloat);        // the inner unit's business
        EXPECT_EQ(module.norm->running_mean.scalar_type(), torch::kFloat);  // Precision::keep_fp32
        WithBuffers twin;
        twin.table.copy_(rounded(twin.table));
        const torch::Tensor rows = batch(1, 12, 4);
        EXPECT_TRUE(torch::allclose(module.forward(rows), twin.forward(rows), 1e-4, 1e-5));
      },
      with(bf16_buffers()));
}

TEST(BufferDtype, WhatIsSavedHasTheDtypeTheyHad) {
  const io::TemporaryFolder folder;
  for_strategies(
      [&](const World& world, const ShardOptions& options) {
        WithBuffers module;
        fully_shard(module, Mesh::shard(world), options);
        const torch::Tensor want = rounded(torch::full({4}, 0.3F));
        const StateDict dict = full_state_dict(module, DictHolder::kEveryRank);
        EXPECT_EQ(dict.tensors.at("table").scalar_type(), torch::kFloat);
        EXPECT_TRUE(torch::equal(dict.tensors.at("table"), want));

        const std::string file = (folder.path() / c10::str(name(options.strategy), world.size, ".pt")).string();
        save(module, file);
        WithBuffers read;
        torch::serialize::InputArchive archive;
        archive.load_from(file);
        read.load(archive);
        EXPECT_EQ(read.table.scalar_type(), torch::kFloat);
        EXPECT_TRUE(torch::equal(read.table, want));
        EXPECT_TRUE(torch::equal(read.inner->shift, rounded(torch::full({4}, 1.001F))));

        module.table.fill_(0);
        load(module, file);
        EXPECT_EQ(module.table.scalar_type(), torch::kBFloat16);
        EXPECT_TRUE(torch::equal(module.table.to(torch::kFloat), want));
      },
      with(bf16_buffers()));
}

TEST(BufferDtype, CheckpointsGoBetweenModelsWithAndWithoutIt) {
  const io::TemporaryFolder folder;
  run_ranks(3, [&](const World& world) {
    WithBuffers module;
    fully_shard(module, Mesh::shard(world));
    checkpoint::save(folder.path() / "step-1", {.model = module});
  });
  run_ranks(2, [&](const World& world) {
    WithBuffers module;
    module.table.zero_();
    ShardOptions options;
    options.precision = bf16_buffers();
    fully_shard(module, Mesh::shard(world), options);
    checkpoint::load(folder.path() / "step-1", {.model = module});
    EXPECT_EQ(module.table.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::equal(module.table, torch::full({4}, 0.3F).to(torch::kBFloat16)));
    checkpoint::save(folder.path() / "step-2", {.model = module});
  });
  run_ranks(1, [&](const World& world) {
    WithBuffers module;
    fully_shard(module, Mesh::shard(world));
    checkpoint::load(folder.path() / "step-2", {.model = module});
    EXPECT_TRUE(torch::equal(module.table, rounded(torch::full({4}, 0.3F))));
  });
}

// ---- Precision::main_grad

Precision bf16_main_grads() {
  Precision precision;
  precision.main_grad = at::kBFloat16;
  return precision;
}

torch::Tensor slice_for(const torch::Tensor& whole, const torch::Tensor& leaf) {
  const LocalRange range = local_range(leaf);
  return whole.detach().flatten().slice(0, range.begin, range.end);
}

// Bound: one rounding to bf16 for each sum, and one for what it is added to.
void expect_rounded_gradients(const torch::nn::Module& sharded, const torch::nn::Module& twin,
                              at::ScalarType dtype = at::kBFloat16) {
  const auto wanted = twin.named_parameters();
  for (const auto& [name, leaf] : named_parameters(sharded)) {
    ASSERT_EQ(leaf.grad().scalar_type(), dtype) << name;
    const torch::Tensor want = slice_for(wanted[name].grad(), leaf);
    const double rounding = dtype == at::kHalf ? 0.002 : 0.01;
    EXPECT_TRUE(torch::allclose(leaf.grad().to(torch::kFloat), want, rounding, 1e-4)) << name;
  }
}

TEST(MainGradDtype, LeavesHaveSumsInBf16ThatAddUp) {
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto twin = make_block_model();
        for (uint64_t seed = 1; seed <= 2; ++seed) {
          loss_of(*sharded.module, share_of(world, batch(seed))).backward();
          loss_of(*twin, batch(seed)).backward();
          expect_rounded_gradients(*sharded.module, *twin);
        }
        EXPECT_EQ(sharded.root.resting_bytes().main_grad * 2, sharded.root.resting_bytes().main_weight);
        const double norm = torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.05);
        EXPECT_NEAR(clip_grad_norm_(*sharded.module, 0.05).item<double>(), norm, 0.01 * norm);
        expect_rounded_gradients(*sharded.module, *twin);
      },
      with(bf16_main_grads()));
}

TEST(MainGradDtype, Fp16IsNearerAndTrainsWithAScaler) {
  Precision precision;
  precision.main_grad = at::kHalf;
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto twin = make_block_model();
        SGD optimizer(parameters(*sharded.module), {.lr = 0.2});
        torch::optim::SGD twins(twin->parameters(), 0.2);
        GradScaler scaler({.init_scale = 256});
        for (uint64_t seed = 1; seed <= 3; ++seed) {
          scaler.scale(loss_of(*sharded.module, share_of(world, batch(seed)))).backward();
          loss_of(*twin, batch(seed)).backward();
          scaler.unscale_(*sharded.module);
          expect_rounded_gradients(*sharded.module, *twin, at::kHalf);
          scaler.step(optimizer);
          scaler.update();
          twins.step();
          zero_grad(*sharded.module);
          twin->zero_grad();
        }
        expect_same_weights(*sharded.module, *twin, 1e-3);
      },
      with(precision));
}

// Sums over the ranks are in fp32: many small ones are not lost beside a large one.
TEST(MainGradDtype, RanksAreAddedUpBeforeTheSumIsRounded) {
  run_ranks(3, [](const World& world) {
    const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    ShardOptions options;
    options.precision = bf16_main_grads();
    options.initial_weights = InitialWeights::kBroadcast;
    Unit unit = fully_shard(*linear, Mesh::shard(world), options);
    unit.set_gradient_scale(GradScale::sum());
    // bf16 has no number between 256 and 258: 256 + 0.75 + 0.75 is 258, one after the other it would be 256.
    linear->forward(torch::full({1, 1}, world.rank == 0 ? 256.0F : 0.75F)).sum().backward();
    const torch::Tensor leaf = parameters(*linear).front();
    if (leaf.numel() > 0) {
      EXPECT_EQ(leaf.grad().item<float>(), 258.0F);
    }
  });
}

// As if the leaf had been given the same numbers in fp32, to the bit.
TEST(MainGradDtype, OptimizersComputeInFp32) {
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto leaves = parameters(*sharded.module);
        std::vector<torch::Tensor> plain;
        for (const torch::Tensor& leaf : leaves) plain.push_back(leaf.detach().clone().requires_grad_());
        AdamW optimizer(leaves, {.lr = 0.02}), plains(plain, {.lr = 0.02});
        for (uint64_t seed = 1; seed <= 3; ++seed) {
          loss_of(*sharded.module, share_of(world, batch(seed))).backward();
          for (size_t i = 0; i < leaves.size(); ++i) plain[i].mutable_grad() = leaves[i].grad().to(torch::kFloat);
          optimizer.step();
          plains.step();
          zero_grad(*sharded.module);
        }
        for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(torch::equal(leaves[i], plain[i])) << i;
      },
      with(bf16_main_grads()));
}

TEST(MainGradDtype, OptimizersOfLibTorchTakeThemToo) {
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto leaves = parameters(*sharded.module);
        std::vector<torch::Tensor> plain;
        for (const torch::Tensor& leaf : leaves) plain.push_back(leaf.detach().clone().requires_grad_());
        torch::optim::AdamW optimizer(leaves, torch::optim::AdamWOptions(0.02));
        torch::optim::AdamW plains(plain, torch::optim::AdamWOptions(0.02));
        for (uint64_t seed = 1; seed <= 3; ++seed) {
          loss_of(*sharded.module, share_of(world, batch(seed))).backward();
          for (size_t i = 0; i < leaves.size(); ++i) plain[i].mutable_grad() = leaves[i].grad().to(torch::kFloat);
          optimizer.step();
          plains.step();
          optimizer.zero_grad();
        }
        for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(torch::allclose(leaves[i], plain[i], 1e-5, 1e-6)) << i;
      },
      with(bf16_main_grads()));
}

TEST(MainGradDtype, WhatIsNoFloatIsRefused) {
  run_ranks(1, [](const World& world) {
    ShardOptions options;
    options.precision.main_grad = at::kInt;
    EXPECT_THAT(error_of([&] { shard_blocks(world, options); }), HasSubstr("main_grad or buffers: got Int"));
  });
}

// ---- moments of AdamW

constexpr AdamWOptions kBf16Moments{.lr = 0.02, .exp_avg_dtype = at::kBFloat16, .exp_avg_sq_dtype = at::kBFloat16};

// The formula, with moments rounded after each step. Long enough for several pieces.
TEST(MomentDtype, Bf16MomentsAreRoundedOncePerStep) {
  auto random = testing::generator(7);
  const torch::Tensor start = torch::randn({40000}, random);
  torch::Tensor leaf = start.clone().requires_grad_();
  AdamW optimizer({leaf}, kBf16Moments);
  torch::Tensor weight = start.to(torch::kDouble), m = torch::zeros_like(weight), v = torch::zeros_like(weight);
  for (int step = 1; step <= 5; ++step) {
    leaf.mutable_grad() = torch::randn({40000}, random);
    optimizer.step();
    const torch::Tensor g = leaf.grad().to(torch::kDouble);
    weight.mul_(1 - 0.02 * 0.01);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    weight -= 0.02 * (m / (1 - std::pow(0.9, step))) / ((v / (1 - std::pow(0.999, step))).sqrt() + 1e-8);
    m = m.to(torch::kBFloat16).to(torch::kDouble);
    v = v.to(torch::kBFloat16).to(torch::kDouble);
  }
  // Bound: a moment next to the middle between two neighbours may go to the other, 1/256 of it, in a step of size lr.
  EXPECT_LT((leaf.detach() - weight).abs().max().item<double>(), 0.02 * 0.05);
  EXPECT_LT((leaf.detach() - weight).abs().mean().item<double>(), 0.02 * 0.0005);
  EXPECT_EQ(optimizer.state_bytes(), 2 * 2 * 40000);
}

TEST(MomentDtype, EachMomentHasItsOwn) {
  const torch::Tensor leaf = torch::ones({100}).requires_grad_();
  AdamW optimizer({leaf}, {.exp_avg_sq_dtype = at::kBFloat16});
  leaf.mutable_grad() = torch::ones({100});
  optimizer.step();
  EXPECT_EQ(optimizer.state_bytes(), (4 + 2) * 100);
}

// fp16 has 10 bits of fraction to bf16's 7, and no use for numbers below 6e-8.
TEST(MomentDtype, AFirstMomentInFp16IsRoundedOncePerStep) {
  auto random = testing::generator(8);
  const torch::Tensor start = torch::randn({40000}, random);
  const torch::Tensor leaf = start.clone().requires_grad_(), exact = start.clone().requires_grad_();
  AdamW optimizer({leaf}, {.lr = 0.02, .exp_avg_dtype = at::kHalf}), plain({exact}, {.lr = 0.02});
  for (int step = 1; step <= 5; ++step) {
    leaf.mutable_grad() = torch::randn({40000}, random);
    exact.mutable_grad() = leaf.grad();
    optimizer.step();
    plain.step();
  }
  EXPECT_EQ(optimizer.state_bytes(), (2 + 4) * 40000);
  const torch::Tensor apart = (leaf.detach() - exact.detach()).abs();
  EXPECT_GT(apart.max().item<double>(), 0);
  // Of each moment four roundings at most, which later ones carry on: about 10 in all, of at most 1/2048 of a moment
  // that may have been twice as large before, in steps of up to 3 lr.
  EXPECT_LT(apart.max().item<double>(), 20 * 0.02 * 3 / 2048);
}

TEST(MomentDtype, ShardedModelsTrainLikePlainTensors) {
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto leaves = parameters(*sharded.module);
        std::vector<torch::Tensor> plain;
        for (const torch::Tensor& leaf : leaves) plain.push_back(leaf.detach().clone().requires_grad_());
        AdamW optimizer(leaves, kBf16Moments), plains(plain, kBf16Moments);
        for (uint64_t seed = 1; seed <= 3; ++seed) {
          loss_of(*sharded.module, share_of(world, batch(seed)).to(torch::kBFloat16)).backward();
          for (size_t i = 0; i < leaves.size(); ++i) plain[i].mutable_grad() = leaves[i].grad().clone();
          optimizer.step();
          plains.step();
          zero_grad(*sharded.module);
        }
        for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(torch::equal(leaves[i], plain[i])) << i;
      },
      with(Precision::bf16()));
}

struct Trained {
  Trained(const World& world, const AdamWOptions& options)
      : sharded(shard_blocks(world)), optimizer(parameters(*sharded.module), options) {}
  void step(const World& world, uint64_t seed) {
    loss_of(*sharded.module, share_of(world, batch(seed))).backward();
    optimizer.step();
    zero_grad(*sharded.module);
  }
  StateDict moments() { return full_optimizer_state_dict(*sharded.module, optimizer, DictHolder::kEveryRank); }
  ShardedBlocks sharded;
  AdamW optimizer;
};

TEST(MomentDtype, CheckpointsOfBf16MomentsAreReadByOtherWorlds) {
  const io::TemporaryFolder folder;
  std::map<std::string, at::Tensor> saved;
  run_ranks(3, [&](const World& world) {
    Trained run(world, kBf16Moments);
    for (uint64_t seed = 1; seed <= 3; ++seed) run.step(world, seed);
    checkpoint::save(folder.path() / "step-3", {.model = *run.sharded.module, .optimizer = run.optimizer});
    const StateDict dict = run.moments();
    if (world.rank == 0) saved = dict.tensors;
  });
  EXPECT_EQ(saved.at("exp_avg_sq/inlet.weight").scalar_type(), torch::kBFloat16);
  for (const int size : {1, 2}) {
    run_ranks(size, [&](const World& world) {
      for (const AdamWOptions& options : {kBf16Moments, AdamWOptions{.lr = 0.02}}) {
        Trained run(world, options);
        checkpoint::load(folder.path() / "step-3", {.model = *run.sharded.module, .optimizer = run.optimizer});
        const StateDict dict = run.moments();
        ASSERT_EQ(dict.tensors.size(), saved.size());
        for (const auto& [name, tensor] : saved) {
          EXPECT_TRUE(torch::equal(dict.tensors.at(name).to(torch::kFloat), tensor.to(torch::kFloat))) << name;
        }
        run.step(world, 4);
      }
    });
  }
}

TEST(MomentDtype, OtherDtypesAndGroupsThatDifferAreRefused) {
  const auto leaf = [] { return torch::ones({3}).requires_grad_(); };
  EXPECT_THAT(error_of([&] { AdamW({leaf()}, {.exp_avg_sq_dtype = at::kHalf}); }), HasSubstr("got Half"));
  EXPECT_THAT(error_of([&] { AdamW({leaf()}, {.exp_avg_dtype = at::kInt}); }), HasSubstr("got Int"));
  EXPECT_THAT(error_of([&] {
                AdamW(std::vector<AdamWGroup>{{{leaf()}, kBf16Moments}, {{leaf()}, {}}});
              }),
              HasSubstr("groups that differ"));
}

}  // namespace
}  // namespace fsdp::dtypes_test
