// fp16 compute and reduction with a GradScaler, against its twin in one process (rounded_twin.h) and a scaler written
// out here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/promise/models/rounded_twin.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::fp16_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::error_of;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::kFlatStrategies;
using testing::make_block_model;
using testing::RoundedTwin;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;
using Tensors = std::vector<torch::Tensor>;

constexpr int kSteps = 10;
constexpr double kLearningRate = 0.02;

torch::Tensor half_batch(int step) { return batch(static_cast<uint64_t>(step)).to(torch::kHalf); }

torch::Tensor wide_loss(BlockModel& model, const torch::Tensor& rows) {
  return model.forward(rows).to(torch::kFloat).square().mean();
}

enum class Wire { kFloat, kHalf };

// Soon tried again, and where no sums are rounded to fp16, which the twin does not do, so high that the first steps
// overflow.
GradScalerOptions restless(Wire wire) {
  return {.init_scale = wire == Wire::kFloat ? 0x1p19 : 0x1p8, .growth_interval = 3};
}

class Twin : public RoundedTwin {
 public:
  Twin(int ranks, const GradScalerOptions& options) : RoundedTwin(torch::kHalf, ranks), options_(options) {}

  // Returns whether the step was taken.
  template <class Optimizer>
  bool step(int step, Optimizer& optimizer, double max_norm) {
    add_gradients(half_batch(step),
                  [this](BlockModel& model, const torch::Tensor& rows) { return wide_loss(model, rows) * scale_; });
    bool finite = true;
    for (const torch::Tensor& parameter : master().parameters()) {
      parameter.grad().div_(scale_);
      finite = finite && torch::isfinite(parameter.grad()).all().item<bool>();
    }
    if (finite) {
      torch::nn::utils::clip_grad_norm_(master().parameters(), max_norm);
      optimizer.step();
    }
    optimizer.zero_grad();
    if (!finite) {
      scale_ /= 2;
      good_ = 0;
    } else if (++good_ == options_.growth_interval) {
      scale_ *= 2;
      good_ = 0;
    }
    return finite;
  }

  GradScalerState state() const { return {scale_, good_}; }

 private:
  GradScalerOptions options_;
  double scale_ = options_.init_scale;
  int64_t good_ = 0;
};

ShardOptions fp16_options(Strategy strategy, Wire wire = Wire::kFloat) {
  ShardOptions options;
  options.strategy = strategy;
  options.precision = Precision::fp16();
  if (wire == Wire::kHalf) options.precision.reduce = torch::kHalf;
  return options;
}

// The gathered weights are the rounded main weights, to the bit, whoever wrote those.
void expect_refreshed(const World& world, ShardedBlocks& sharded) {
  const FullParameters scope(sharded.blocks[1]);
  const torch::Tensor computed = sharded.module->block(1).up->weight.detach().clone();
  ASSERT_EQ(computed.scalar_type(), torch::kHalf);
  for (const auto& [name, leaf] : named_parameters(*sharded.module->layers[1])) {
    if (name != "up.weight") continue;
    const LocalRange range = local_range(leaf);
    EXPECT_TRUE(torch::equal(computed.flatten().slice(0, range.begin, range.end), leaf.detach().to(torch::kHalf)))
        << "rank " << world.rank;
  }
}

// How a program learns the norm that it clips by.
enum class Clip { kUnscaled, kByFactor };

template <class Optimizer>
ScaledStep take_step(GradScaler& scaler, const torch::nn::Module& model, Optimizer& optimizer, double max_norm,
                     Clip clip) {
  if (clip == Clip::kByFactor) {
    scaler.grad_norm(parameters(model), max_norm);
  } else {
    scaler.unscale_(model);
    clip_grad_norm_(model, max_norm);
  }
  const ScaledStep outcome = scaler.step(optimizer);
  scaler.update();
  return outcome;
}

struct Case {
  int ranks;
  Wire wire;
  double tolerance;
  Clip clip;
};

// Tolerance: what Adam, whose first steps are of size lr whatever the gradient's, makes of the last bits of sums.
template <class ShardedOptimizer, class PlainOptimizer>
void expect_twin(const Case& of, const std::function<ShardedOptimizer(Tensors)>& make,
                 const std::function<PlainOptimizer(Tensors)>& make_plain) {
  constexpr double kMaxNorm = 0.5;
  for (const Strategy strategy : kFlatStrategies) {
    run_ranks(of.ranks, [&](const World& world) {
      SCOPED_TRACE(c10::str(name(strategy), ", rank ", world.rank, " of ", of.ranks));
      ShardedBlocks sharded = shard_blocks(world, fp16_options(strategy, of.wire));
      Twin twin(of.ranks, restless(of.wire));
      ShardedOptimizer optimizer = make(parameters(*sharded.module));
      PlainOptimizer plain = make_plain(twin.master().parameters());
      GradScaler scaler(restless(of.wire));
      int skipped = 0;
      for (int step = 0; step < kSteps; ++step) {
        scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(step)))).backward();
        const bool taken = take_step(scaler, *sharded.module, optimizer, kMaxNorm, of.clip) == ScaledStep::kTaken;
        zero_grad(*sharded.module);
        EXPECT_EQ(taken, twin.step(step, plain, kMaxNorm)) << "step " << step;
        EXPECT_EQ(scaler.state(), twin.state()) << "step " << step;
        skipped += taken ? 0 : 1;
        expect_refreshed(world, sharded);
      }
      EXPECT_EQ(skipped > 0, of.wire == Wire::kFloat);
      EXPECT_LT(skipped, kSteps - 2);
      expect_same_weights(*sharded.module, twin.master(), of.tolerance);
    });
  }
}

void expect_adamw(const Case& of) {
  expect_twin<AdamW, torch::optim::AdamW>(
      of, [](const Tensors& leaves) { return AdamW(leaves, {.lr = kLearningRate, .weight_decay = 0.1}); },
      [](const Tensors& weights) {
        return torch::optim::AdamW(weights, torch::optim::AdamWOptions(kLearningRate).weight_decay(0.1));
      });
}

TEST(Fp16, AdamWTrainsLikeTheTwin) {
  for (const int ranks : {1, 2, 3}) expect_adamw({ranks, Wire::kFloat, 0.05 * kLearningRate, Clip::kUnscaled});
}

TEST(Fp16, AClippingFactorServesAsWell) { expect_adamw({2, Wire::kFloat, 0.05 * kLearningRate, Clip::kByFactor}); }

TEST(Fp16, SGDTrainsLikeTheTwinAlsoReducingInFp16) {
  for (const int ranks : {1, 2, 3}) {
    for (const Wire wire : {Wire::kFloat, Wire::kHalf}) {
      expect_twin<SGD, torch::optim::SGD>(
          {ranks, wire, 1e-3, Clip::kUnscaled},
          [](const Tensors& leaves) { return SGD(leaves, {.lr = kLearningRate, .momentum = 0.9}); },
          [](const Tensors& weights) {
            return torch::optim::SGD(weights, torch::optim::SGDOptions(kLearningRate).momentum(0.9));
          });
    }
  }
}

TEST(Fp16, TorchOptimizersTrainLikeTheTwin) {
  for (const Clip clip : {Clip::kUnscaled, Clip::kByFactor}) {
    expect_twin<torch::optim::SGD, torch::optim::SGD>(
        {2, Wire::kFloat, 1e-3, clip}, [](const Tensors& leaves) { return torch::optim::SGD(leaves, kLearningRate); },
        [](const Tensors& weights) { return torch::optim::SGD(weights, kLearningRate); });
  }
}

// ---- what travels in fp16

// Enough elements for each of up to four ranks to own some.
struct ConstantGradient : torch::nn::Module {
  ConstantGradient() { weight = register_parameter("weight", torch::zeros({48})); }
  torch::Tensor loss(double gradient) { return (weight * torch::full({48}, gradient, torch::kHalf)).sum(); }
  torch::Tensor weight;
};

// The gradient that all ranks have, after `backwards` of them.
double reduced_gradient(const Mesh& mesh, Strategy strategy, double gradient, int backwards, const GradScale& scale) {
  const auto module = std::make_shared<ConstantGradient>();
  Unit root = fully_shard(*module, mesh, fp16_options(strategy, Wire::kHalf));
  root.set_gradient_scale(scale);
  const Tensors leaves = parameters(*module);
  for (int i = 0; i < backwards; ++i) module->loss(gradient).backward();
  for (const torch::Tensor& leaf : leaves) {
    if (leaf.numel() > 0) return leaf.grad().min().item<double>();
  }
  return gradient * backwards;
}

// Four of the first do not fit into fp16 undivided; the second, divided by four, would be half of the smallest number.
TEST(Fp16, MeansOnTheWireNeitherOverflowNorVanish) {
  for (const double gradient : {20000.0, 0x1p-23, 1.0}) {
    for (const int backwards : {1, 2}) {
      const double expected = gradient * backwards;
      for (const Strategy strategy : kFlatStrategies) {
        run_ranks(4, [&](const World& world) {
          EXPECT_EQ(reduced_gradient(Mesh::shard(world), strategy, gradient, backwards, GradScale::mean()), expected)
              << name(strategy);
        });
      }
      for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridOptim}) {
        run_ranks(4, [&](const World& world) {
          const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
          EXPECT_EQ(reduced_gradient(mesh, strategy, gradient, backwards, GradScale::mean()), expected)
              << name(strategy);
        });
      }
    }
  }
}

TEST(Fp16, SumsAndOddWorlds) {
  run_ranks(3, [&](const World& world) {
    for (const Strategy strategy : kFlatStrategies) {
      const Mesh mesh = Mesh::shard(world);
      EXPECT_EQ(reduced_gradient(mesh, strategy, 7, 1, GradScale::sum()), 21);
      EXPECT_EQ(reduced_gradient(mesh, strategy, 8, 2, GradScale::sum(2)), 24);
      EXPECT_NEAR(reduced_gradient(mesh, strategy, 30000, 2, GradScale::mean()), 60000, 60);
      EXPECT_NEAR(reduced_gradient(mesh, strategy, 30000, 1, GradScale::per_token(100)), 300, 0.3);
    }
  });
}

// Main weights of fp16 too, as an optimizer of torch's has them.
TEST(Fp16, WholeModelsOfFp16TrainAsUnsharded) {
  for (const Strategy strategy : kFlatStrategies) {
    run_ranks(2, [&](const World& world) {
      const auto half_model = [] {
        auto model = make_block_model();
        model->to(torch::kHalf);
        return model;
      };
      const auto module = half_model(), plain = half_model();
      ShardOptions options;
      options.strategy = strategy;
      fully_shard(*module, Mesh::shard(world), options);
      torch::optim::SGD optimizer(parameters(*module), kLearningRate), other(plain->parameters(), kLearningRate);
      for (int step = 0; step < 3; ++step) {
        wide_loss(*module, share_of(world, half_batch(step))).backward();
        wide_loss(*plain, half_batch(step)).backward();
        optimizer.step();
        other.step();
        zero_grad(*module);
        other.zero_grad();
      }
      for (const torch::Tensor& leaf : parameters(*module)) EXPECT_EQ(leaf.scalar_type(), torch::kHalf);
      expect_same_weights(*module, *plain, 2e-3);
    });
  }
}

// ---- overflow

enum class Ask { kNorm, kFactor, kNothing };

// What a program asks of the gradients before a step.
void ask_for(Ask ask, GradScaler& scaler, BlockModel& module) {
  if (ask == Ask::kNorm) {
    scaler.unscale_(module);
    clip_grad_norm_(module, 1.0);
  }
  if (ask == Ask::kFactor) scaler.grad_norm(parameters(module), 1.0);
}

// Rank 1 alone has gradients that are not finite.
TEST(Fp16, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const Strategy strategy : kFlatStrategies) {
    for (const Ask ask : {Ask::kNorm, Ask::kFactor, Ask::kNothing}) {
      for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
        run_ranks(3, [&](const World& world) {
          SCOPED_TRACE(c10::str(name(strategy), ", ", static_cast<int>(ask), ", ", bad));
          ShardedBlocks sharded = shard_blocks(world, fp16_options(strategy));
          AdamW optimizer(parameters(*sharded.module), {.lr = kLearningRate});
          GradScaler scaler({.init_scale = 1024});
          const auto before = make_block_model();
          const double factor = world.rank == 1 ? bad : 1;
          scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(1))) * factor).backward();
          ask_for(ask, scaler, *sharded.module);
          EXPECT_EQ(scaler.step(optimizer), ScaledStep::kSkipped);
          scaler.update();
          EXPECT_EQ(scaler.state(), (GradScalerState{512, 0}));
          EXPECT_EQ(optimizer.num_steps(), 0);
          expect_same_weights(*sharded.module, *before, 0);
          zero_grad(*sharded.module);
          scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(1)))).backward();
          EXPECT_EQ(scaler.step(optimizer), ScaledStep::kTaken);
          scaler.update();
          EXPECT_EQ(scaler.state(), (GradScalerState{512, 1}));
        });
      }
    }
  }
}

// One slice of one parameter, after the reduction: only its owner sees it.
TEST(Fp16, AnOverflowInOneSliceSkipsTheStepOnAll) {
  run_ranks(3, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, fp16_options(Strategy::kOptimGradsParams));
    torch::optim::SGD optimizer(parameters(*sharded.module), kLearningRate);
    GradScaler scaler({.init_scale = 1024});
    for (const Ask ask : {Ask::kNorm, Ask::kFactor, Ask::kNothing}) {
      scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(1)))).backward();
      for (torch::Tensor& leaf : parameters(*sharded.module)) {
        if (world.rank == 2 && leaf.numel() > 0) leaf.mutable_grad().fill_(INFINITY);
      }
      ask_for(ask, scaler, *sharded.module);
      EXPECT_EQ(scaler.step(optimizer), ScaledStep::kSkipped);
      scaler.update();
      optimizer.zero_grad();
    }
    EXPECT_EQ(scaler.current_scale(), 128);
  });
}

int64_t overflow_calls(const World& world) {
  const std::string log = world.connection->calls().dump_json(), op = "overflow of gradients";
  int64_t count = 0;
  for (size_t at = log.find(op); at != std::string::npos; at = log.find(op, at + 1)) ++count;
  return count;
}

TEST(Fp16, TheFlagTravelsWithTheNorm) {
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, fp16_options(Strategy::kOptimGradsParams));
    AdamW optimizer(parameters(*sharded.module), {.lr = kLearningRate});
    GradScaler scaler({.init_scale = 1024});
    for (const Ask ask : {Ask::kNorm, Ask::kFactor, Ask::kNothing}) {
      const int64_t before = overflow_calls(world);
      scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(1)))).backward();
      if (ask == Ask::kFactor) scaler.grad_norm(parameters(*sharded.module), 1.0);
      if (ask != Ask::kFactor) scaler.unscale_(*sharded.module);
      if (ask == Ask::kNorm) clip_grad_norm_(*sharded.module, 1.0);
      EXPECT_EQ(scaler.step(optimizer), ScaledStep::kTaken);
      scaler.update();
      zero_grad(*sharded.module);
      EXPECT_EQ(overflow_calls(world) - before, ask == Ask::kNothing ? 1 : 0);
    }
  });
}

// ---- misuse, and what a scaler remembers

TEST(Fp16, MisuseIsRefusedByName) {
  run_ranks(1, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, fp16_options(Strategy::kOptimGradsParams));
    AdamW optimizer(parameters(*sharded.module), {.lr = kLearningRate});
    GradScaler scaler({.init_scale = 1024});
    const auto backward = [&] {
      zero_grad(*sharded.module);
      scaler.scale(wide_loss(*sharded.module, half_batch(1))).backward();
    };
    wide_loss(*sharded.module, half_batch(1)).backward();
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("step: got no loss to scale"));
    EXPECT_THAT(error_of([&] { scaler.unscale_(*sharded.module); }), HasSubstr("unscale_: got no loss to scale"));
    EXPECT_THAT(error_of([&] { scaler.grad_norm({}, 1); }), HasSubstr("grad_norm: got no loss to scale"));
    EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("update: got no step()"));
    backward();
    scaler.unscale_(*sharded.module);
    EXPECT_THAT(error_of([&] { scaler.unscale_(*sharded.module); }), HasSubstr("unscale_: got gradients that were"));
    EXPECT_THAT(error_of([&] { scaler.grad_norm(parameters(*sharded.module), 1); }),
                HasSubstr("expected fsdp::grad_norm()"));
    scaler.step(optimizer);
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("step: got the same optimizer twice"));
    scaler.update();
    EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("update: got no step()"));
    backward();
    scaler.unscale_({parameters(*sharded.module).front()});
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("expected all or none"));
    scaler.forget_step();
    backward();
    EXPECT_EQ(scaler.step(optimizer), ScaledStep::kTaken);
    scaler.update();
    optimizer.step_in_backward();
    backward();
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("updated in the backward"));
    EXPECT_THAT(error_of([] { GradScaler({.init_scale = 0}); }), HasSubstr("init_scale: got 0"));
    EXPECT_THAT(error_of([] { GradScaler({.backoff_factor = 1}); }), HasSubstr("backoff_factor 1"));
    EXPECT_THAT(error_of([] { GradScaler({.growth_interval = 0}); }), HasSubstr("growth_interval: got 0"));
    EXPECT_THAT(error_of([&] { scaler.load({-1, 0}); }), HasSubstr("load: got scale -1"));
  });
}

TEST(Fp16, SeveralOptimizersStepBetweenTwoUpdates) {
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, fp16_options(Strategy::kOptimGradsParams));
    Tensors leaves = parameters(*sharded.module);
    const Tensors first(leaves.begin(), leaves.begin() + 2), others(leaves.begin() + 2, leaves.end());
    AdamW one(first, {.lr = kLearningRate});
    torch::optim::SGD other(others, kLearningRate);
    GradScaler scaler({.init_scale = 1024, .growth_interval = 1});
    scaler.scale(wide_loss(*sharded.module, share_of(world, half_batch(1)))).backward();
    for (const torch::Tensor& leaf : first) {
      if (leaf.numel() > 0) leaf.grad().fill_(INFINITY);
    }
    EXPECT_EQ(scaler.step(one), ScaledStep::kSkipped);
    EXPECT_EQ(scaler.step(other), ScaledStep::kTaken);
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), 512);
  });
}

// Saved by two ranks; read by one, by two, and by a program whose scaler says otherwise.
TEST(Fp16, CheckpointsKeepScaleAndCounter) {
  const auto folder = std::filesystem::temp_directory_path() / c10::str("fsdp_fp16_", getpid()) / "step-3";
  const GradScalerState expected{12345.678, 41};
  const auto with = [&](const World& world, const auto& body) {
    ShardedBlocks sharded = shard_blocks(world, fp16_options(Strategy::kOptimGradsParams));
    AdamW optimizer(parameters(*sharded.module), {.lr = kLearningRate});
    GradScaler scaler;
    body(checkpoint::State{.model = *sharded.module, .optimizer = optimizer, .scaler = &scaler}, scaler);
  };
  run_ranks(2, [&](const World& world) {
    with(world, [&](const checkpoint::State& state, GradScaler& scaler) {
      scaler.load(expected);
      checkpoint::save(folder, state);
    });
  });
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const World& world) {
      with(world, [&](const checkpoint::State& state, GradScaler& scaler) {
        checkpoint::load(folder, state);
        EXPECT_EQ(scaler.state(), expected);
      });
    });
  }
  run_ranks(1, [&](const World& world) {  // one without a scaler leaves it as it is
    with(world, [&](checkpoint::State state, GradScaler& scaler) {
      state.scaler = nullptr;
      checkpoint::save(folder, state);
      state.scaler = &scaler;
      checkpoint::load(folder, state);
      EXPECT_EQ(scaler.state(), (GradScalerState{65536, 0}));
    });
  });
  std::filesystem::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace fsdp::fp16_test
