// Averages of weights as they train, against their definition in double precision and models that are not sharded.
#include "fsdp/optim/ema/ema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using testing::generator;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using ::testing::ThrowsMessage;

using NamedTensors = std::map<std::string, torch::Tensor>;

constexpr double kDecay = 0.8;

struct AveragedNet : torch::nn::Module {
  AveragedNet() {
    layers = register_module("layers", torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3)));
    last = register_parameter("last", torch::randn({11}));
    fixed = register_parameter("fixed", torch::randn({4}), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return layers->forward(x).square().sum() + last.square().sum() + fixed.sum();
  }
  torch::nn::Sequential layers{nullptr};
  torch::Tensor last, fixed;
};

std::shared_ptr<AveragedNet> make_averaged_net() {
  return make_seeded(41, [] { return std::make_shared<AveragedNet>(); });
}

torch::Tensor averaged_input(int step) { return torch::randn({4, 5}, generator(700 + static_cast<uint64_t>(step))); }

// A sharded model that trains, and the averages.
struct AveragedRun {
  explicit AveragedRun(const World& world, Strategy strategy = Strategy::kOptimGradsParams) : net(make_averaged_net()) {
    ShardOptions options;
    options.strategy = strategy;
    fully_shard(*net->layers, Mesh::shard(world), options);
    fully_shard(*net, Mesh::shard(world), options);
    optimizer.emplace(parameters(*net), SGDOptions{.lr = 0.01});
    ema.emplace(parameters(*net), EmaOptions{kDecay});
  }

  void step(int number) {
    zero_grad(*net);
    net->forward(averaged_input(number)).backward();
    optimizer->step();
    ema->update();
  }
  NamedTensors weights() { return full_state_dict(*net).tensors; }
  NamedTensors averages() {
    ema->use_average();
    NamedTensors result = weights();
    ema->use_trained();
    return result;
  }
  checkpoint::State state() {
    checkpoint::State state{*net, *optimizer};
    state.ema = &*ema;
    return state;
  }

  std::shared_ptr<AveragedNet> net;
  std::optional<SGD> optimizer;
  std::optional<Ema> ema;
};

void expect_equal(const NamedTensors& actual, const NamedTensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << name;
}

TEST(Ema, FollowsItsDefinition) {
  constexpr int kSteps = 9;
  for (const auto& [size, strategy] : std::vector<std::pair<int, Strategy>>{{1, Strategy::kOptimGradsParams},
                                                                            {2, Strategy::kOptim},
                                                                            {3, Strategy::kOptimGradsParams},
                                                                            {3, Strategy::kNoShard}}) {
    SCOPED_TRACE(std::to_string(size) + " " + std::string(name(strategy)));
    run_ranks(size, [&, strategy = strategy](const World& world) {
      AveragedRun run(world, strategy);
      std::map<std::string, torch::Tensor> sums;
      double counted = 0;
      for (int step = 0; step < kSteps; ++step) {
        run.step(step);
        const double share = std::pow(kDecay, kSteps - 1 - step);
        counted += share;
        for (const auto& [name, weight] : run.weights()) {
          torch::Tensor& sum = sums[name];
          sum = (sum.defined() ? sum : torch::zeros_like(weight, torch::kDouble)) + share * weight.to(torch::kDouble);
        }
      }
      const NamedTensors trained = run.weights();
      run.ema->use_average();
      const auto plain = make_averaged_net();
      const torch::NoGradGuard no_grad;
      for (const auto& [name, average] : run.weights()) {
        EXPECT_TRUE(torch::allclose(average.to(torch::kDouble), sums.at(name) / counted, 1e-6, 1e-6)) << name;
        plain->named_parameters()[name].copy_(average);
      }
      // Units gather them.
      const torch::Tensor input = averaged_input(99);
      EXPECT_TRUE(torch::allclose(run.net->forward(input), plain->forward(input), 1e-5, 1e-5));
      run.ema->use_trained();
      expect_equal(run.weights(), trained);
    });
  }
}

TEST(Ema, TrainingGoesOnAsIfNobodyHadLooked) {
  run_ranks(2, [&](const World& world) {
    AveragedRun quiet(world), watched(world);
    for (int step = 0; step < 4; ++step) {
      quiet.step(step);
      watched.step(step);
      watched.averages();
    }
    expect_equal(watched.weights(), quiet.weights());
    expect_equal(watched.averages(), quiet.averages());
    // Of trained parameters, with what each rank's slices are filled up with.
    EXPECT_GE(watched.ema->state_bytes() * 2, 4 * (5 * 7 + 7 + 7 * 3 + 3 + 11));
  });
}

TEST(Ema, ComesBackAtAnyNumberOfRanks) {
  const io::TemporaryFolder folder;
  NamedTensors saved, longer;
  run_ranks(2, [&](const World& world) {
    AveragedRun run(world);
    for (int step = 0; step < 5; ++step) run.step(step);
    checkpoint::save(folder / "step-5", run.state());
    const NamedTensors averages = run.averages();
    run.step(5);
    const NamedTensors later = run.averages();
    if (world.rank == 0) saved = averages, longer = later;
  });
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      AveragedRun run(world);
      run.step(77);  // is forgotten
      checkpoint::load(folder / "step-5", run.state());
      expect_equal(run.averages(), saved);
      run.step(5);
      const NamedTensors averages = run.averages();
      for (const auto& [name, average] : longer) {
        const torch::Tensor& own = averages.at(name);
        EXPECT_TRUE(size == 2 ? torch::equal(own, average) : torch::allclose(own, average, 1e-6, 1e-7)) << name;
      }
    });
  }
}

TEST(Ema, BeginsAnewAfterACheckpointWithoutIt) {
  const io::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    AveragedRun run(world);
    run.step(0);
    checkpoint::State without = run.state();
    without.ema = nullptr;
    checkpoint::save(folder / "step-1", without);
    run.step(1);
    checkpoint::load(folder / "step-1", run.state());
    expect_equal(run.averages(), run.weights());  // there are none, and weights stay
    run.step(2);
    expect_equal(run.averages(), run.weights());  // the first that was seen
    run.step(3);
    EXPECT_FALSE(torch::equal(run.averages().at("last"), run.weights().at("last")));
  });
}

TEST(Ema, RefusesWhatWouldMixUpTheWeights) {
  const io::TemporaryFolder folder;
  const auto usage = [](const char* text) { return ThrowsMessage<Error>(HasSubstr(text)); };
  run_ranks(2, [&](const World& world) {
    AveragedRun run(world);
    run.step(0);
    run.ema->use_average();
    EXPECT_THAT([&] { run.ema->update(); }, usage("use_trained()"));
    EXPECT_THAT([&] { checkpoint::save(folder / "step-1", run.state()); }, usage("use_trained()"));
    run.ema->use_trained();
    checkpoint::save(folder / "step-1", run.state());
    run.ema->use_average();
    EXPECT_THAT([&] { checkpoint::load(folder / "step-1", run.state()); }, usage("use_trained()"));
  });
  const std::vector<at::Tensor> leaves{torch::ones({3}, torch::requires_grad())};
  EXPECT_THAT([&] { Ema(leaves, {1}); }, usage("[Ema] decay: got 1"));
  EXPECT_THAT([&] { Ema({torch::ones({3}, torch::kBFloat16).requires_grad_()}, {}); }, usage("fp32 or fp64"));
}

}  // namespace
}  // namespace fsdp
