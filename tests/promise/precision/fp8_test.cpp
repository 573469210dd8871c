// fsdp::fp8 on models of torch::nn, sharded and not.
#include "fsdp/precision/fp8.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "fsdp/fsdp.h"
#include "kernels/products/fp8_linear.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::fp8_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_same_weights;
using testing::for_strategies;
using testing::for_worlds;
using testing::global_generator_mutex;
using ::testing::HasSubstr;
using testing::share_of;

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kBlockwise, Fp8Recipe::kMx};
constexpr int kSteps = 3;

struct Mlp : torch::nn::Module {
  Mlp() {
    inlet = register_module("inlet", torch::nn::Linear(5, 128));
    up = register_module("up", torch::nn::Linear(128, 256));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(256, 128).bias(false)));
    outlet = register_module("outlet", torch::nn::Linear(128, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return outlet(torch::gelu(down(torch::gelu(up(inlet(x)))))); }

  torch::nn::Linear inlet{nullptr}, up{nullptr}, down{nullptr}, outlet{nullptr};
};

std::shared_ptr<Mlp> make_mlp() {
  const std::scoped_lock lock(global_generator_mutex);
  torch::manual_seed(11);
  return std::make_shared<Mlp>();
}

torch::Tensor rows_of(int step) { return testing::batch(static_cast<uint64_t>(step), 12, 5); }
torch::Tensor loss_of(Mlp& model, const torch::Tensor& rows) { return model.forward(rows).square().mean(); }

// A step of the batch that the ranks share, as each of them computes its part.
void twin_step(Mlp& twin, torch::optim::Optimizer& optimizer, int step, int ranks) {
  optimizer.zero_grad();
  for (int rank = 0; rank < ranks; ++rank) {
    World place;
    place.rank = rank;
    place.size = ranks;
    loss_of(twin, share_of(place, rows_of(step))).backward();
  }
  for (const torch::Tensor& parameter : twin.parameters()) parameter.grad().div_(ranks);
  optimizer.step();
}

void expect_same_training(const World& world, const ShardOptions& options, Fp8Recipe recipe) {
  const auto sharded = make_mlp(), twin = make_mlp();
  fp8(*twin, recipe);
  fp8(*sharded, recipe);
  const Mesh mesh(world, {{"shard", world.size}});
  fully_shard(*sharded->up, mesh, options);
  fully_shard(*sharded, mesh, options);
  torch::optim::SGD ours(parameters(*sharded), 0.1), theirs(twin->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    zero_grad(*sharded);
    loss_of(*sharded, share_of(world, rows_of(step))).backward();
    ours.step();
    twin_step(*twin, theirs, step, world.size);
    // Later a number may lie so near the middle of two that the order of a sum over ranks decides where it goes.
    expect_same_weights(*sharded, *twin, step == 0 ? 1e-6 : 2e-4);
  }
}

TEST(Fp8Training, EqualsTheUnshardedModelsForEveryRecipe) {
  for (const Fp8Recipe recipe : kRecipes) {
    SCOPED_TRACE(kernels::name(recipe));
    for_worlds([&](const World& world) { expect_same_training(world, {}, recipe); });
  }
}

TEST(Fp8Training, EqualsTheUnshardedModelsForEveryStrategy) {
  for_strategies([](const World& world, const ShardOptions& options) {
    expect_same_training(world, options, Fp8Recipe::kRowwise);
  });
}

TEST(Fp8Training, MayBeAskedForAfterSharding) {
  for_worlds([](const World& world) {
    const auto before = make_mlp(), after = make_mlp();
    fp8(*before);
    const Mesh mesh(world, {{"shard", world.size}});
    for (const auto& model : {before, after}) fully_shard(*model, mesh, {.precision = Precision::bf16()});
    fp8(*after);
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = rows_of(0).to(torch::kBFloat16);
    EXPECT_TRUE(torch::equal(after->forward(x), before->forward(x)));
  });
}

// The mean loss of the last steps of learning a fixed function.
double final_loss(const std::optional<Fp8Recipe>& recipe) {
  constexpr int kLearningSteps = 150, kLast = 20;
  const auto model = make_mlp();
  if (recipe) fp8(*model, *recipe);
  torch::optim::Adam optimizer(model->parameters(), 3e-3);
  double sum = 0;
  for (int step = 0; step < kLearningSteps; ++step) {
    const torch::Tensor rows = testing::batch(static_cast<uint64_t>(step), 64, 5);
    const torch::Tensor wanted = torch::stack({rows.sum(1), rows.prod(1), rows.square().sum(1)}, 1);
    optimizer.zero_grad();
    const torch::Tensor loss = (model->forward(rows) - wanted).square().mean();
    loss.backward();
    optimizer.step();
    if (step >= kLearningSteps - kLast) sum += loss.item<double>();
  }
  return sum / kLast;
}

struct BrokenScales {
  explicit BrokenScales(int steps) { kernels::break_fp8_scales(steps); }
  ~BrokenScales() { kernels::break_fp8_scales(0); }
};

// What a limit on the loss is worth: it holds for every recipe, and for none whose scales are wrong.
TEST(Fp8Training, FollowsFp32UnlessItsScalesAreBroken) {
  const double limit = 1.5 * final_loss(std::nullopt);
  for (const Fp8Recipe recipe : kRecipes) {
    SCOPED_TRACE(kernels::name(recipe));
    EXPECT_LT(final_loss(recipe), limit);
    for (const int steps : {20, -12}) {
      const BrokenScales broken(steps);
      EXPECT_GT(final_loss(recipe), limit) << steps;
    }
  }
}

TEST(Fp8Layers, AreAllButTheFirstAndTheLast) {
  const auto model = make_mlp(), plain = make_mlp();
  EXPECT_THAT(fp8(*model), ElementsAre("up", "down"));
  const torch::Tensor x = rows_of(0), inner = plain->inlet(x);
  EXPECT_TRUE(torch::equal(model->inlet(x), inner));
  EXPECT_TRUE(torch::equal(model->up(inner),
                           kernels::fp8_linear(inner, plain->up->weight, Fp8Recipe::kRowwise) + plain->up->bias));
  EXPECT_FALSE(torch::allclose(model->up(inner), plain->up(inner)));
  EXPECT_TRUE(torch::allclose(model->up(inner), plain->up(inner), 0.1, 0.1));
}

TEST(Fp8Layers, AreThoseOfTheFilterAndTheLastCallsRecipe) {
  const auto model = make_mlp(), plain = make_mlp();
  fp8(*model, Fp8Recipe::kTensorwise);
  EXPECT_THAT(fp8(*model, Fp8Recipe::kMx, [](const std::string& name) { return name == "down"; }), ElementsAre("down"));
  const torch::Tensor x = torch::ones({2, 256}) * torch::linspace(-1, 1, 256);
  EXPECT_TRUE(torch::equal(model->down(x), kernels::fp8_linear(x, plain->down->weight, Fp8Recipe::kMx)));
}

TEST(Fp8Layers, StayWhenTheModelIsConverted) {
  const auto model = make_mlp();
  fp8(*model);
  model->to(torch::kBFloat16);
  const torch::Tensor x = torch::ones({2, 128}, torch::kBFloat16) * torch::linspace(-1, 1, 128).to(torch::kBFloat16);
  EXPECT_TRUE(
      torch::equal(model->up(x), kernels::fp8_linear(x, model->up->weight, Fp8Recipe::kRowwise) + model->up->bias));
}

struct Autocast {
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST(Fp8Layers, AreSoUnderAutocast) {
  const auto model = make_mlp();
  fp8(*model);
  const torch::Tensor x = torch::linspace(-1, 1, 256).view({2, 128});
  const torch::Tensor expected =
      kernels::fp8_linear(x.to(torch::kBFloat16), model->up->weight.to(torch::kBFloat16), Fp8Recipe::kRowwise) +
      model->up->bias.to(torch::kBFloat16);
  const Autocast scope;
  EXPECT_TRUE(torch::equal(model->up(x), expected));
}

TEST(Fp8Layers, AreRefusedByName) {
  const auto model = make_mlp();
  EXPECT_THAT(error_of([&] { fp8(*model, Fp8Recipe::kRowwise, [](const std::string&) { return true; }); }),
              HasSubstr("[fp8] layer inlet: got a weight of 128 x 5, expected multiples of 16, as rowwise scaling"));
  EXPECT_THAT(error_of([&] { fp8(*model, Fp8Recipe::kRowwise, [](const std::string& name) { return name == "uq"; }); }),
              HasSubstr("no torch::nn::Linear that the filter accepts, expected at least one. The module has: inlet, "
                        "up, down, outlet."));
  torch::nn::Sequential two(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16));
  EXPECT_THAT(error_of([&] { fp8(*two); }), HasSubstr("neither the first nor the last"));
  EXPECT_THAT(error_of([] { parse_fp8_recipe("e4m3"); }), HasSubstr("got the recipe 'e4m3', expected tensorwise"));
  const torch::Tensor x = rows_of(0);
  EXPECT_TRUE(torch::equal(model->forward(x), make_mlp()->forward(x)));  // a refusal changed nothing
}

}  // namespace
}  // namespace fsdp::fp8_test
