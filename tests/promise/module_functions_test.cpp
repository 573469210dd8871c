// 554 lines because it is one table: functions of torch::nn::Module, torch::nn::utils, torch::save and torch::optim on
// a sharded model. Each does what it does on an unsharded one, or is refused by name (docs/libtorch_functions.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <limits>
#include <sstream>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::module_functions_test {
namespace {

using ::testing::AllOf;
using testing::batch;
using testing::BlockModel;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::for_strategies;
using testing::for_worlds;
using ::testing::HasSubstr;
using testing::kFlatStrategies;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr double kRate = 0.1;

// Text of what LibTorch or the library throws; "no error" if nothing is thrown.
std::string text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// A sharded model and its twin, one step of SGD after the start.
struct Pair {
  explicit Pair(const World& world, const ShardOptions& options = {})
      : world(world),
        sharded(shard_blocks(world, options)),
        twin(make_block_model()),
        optimizer(parameters(*sharded.module), torch::optim::SGDOptions(kRate)),
        twins(twin->parameters(), torch::optim::SGDOptions(kRate)) {}

  void backward(uint64_t seed) {
    loss_of(*sharded.module, share_of(world, batch(seed))).backward();
    loss_of(*twin, batch(seed)).backward();
  }
  void step(uint64_t seed) {
    backward(seed);
    optimizer.step();
    twins.step();
    optimizer.zero_grad();
    twins.zero_grad();
  }
  BlockModel& module() { return *sharded.module; }

  World world;
  ShardedBlocks sharded;
  std::shared_ptr<BlockModel> twin;
  torch::optim::SGD optimizer, twins;
};

void expect_close(const torch::Tensor& got, const torch::Tensor& want) {
  EXPECT_TRUE(torch::allclose(got, want, 1e-5, 1e-6)) << got << "\n" << want;
}

// ---- memory that is read by no operator

// What it wrote must be right where it wrote anything.
void expect_right_or_refused(const std::function<void(std::ostream&)>& save, const BlockModel& twin) {
  std::stringstream file;
  const std::string error = text_of([&] { save(file); });
  if (error != "no error") {
    EXPECT_THAT(error, AllOf(HasSubstr("is sharded"), HasSubstr("fsdp::save(module, file)")));
    return;
  }
  const auto read = make_block_model();
  for (torch::Tensor& parameter : read->parameters()) parameter.detach().zero_();
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  read->load(archive);
  for (size_t i = 0; i < twin.parameters().size(); ++i) expect_close(read->parameters()[i], twin.parameters()[i]);
}

TEST(ModuleFunctions, TorchSaveWritesTheWeightsOrIsRefused) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const auto save = [&](std::ostream& file) { torch::save(pair.sharded.module, file); };
    expect_right_or_refused(save, *pair.twin);
    for (uint64_t step = 0; step < 3; ++step) {
      pair.step(step);
      expect_right_or_refused(save, *pair.twin);
      pair.module().forward(share_of(world, batch(9)));
      expect_right_or_refused(save, *pair.twin);
    }
  });
}

TEST(ModuleFunctions, TorchSaveIsRefusedAfterFusedOptimizersToo) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const ShardedBlocks sharded = shard_blocks(world, options);
    const auto twin = make_block_model();
    AdamW optimizer(parameters(*sharded.module), {.lr = kRate});
    torch::optim::AdamW twins(twin->parameters(), torch::optim::AdamWOptions(kRate).weight_decay(0.01));
    for (uint64_t step = 0; step < 2; ++step) {
      loss_of(*sharded.module, share_of(world, batch(step))).backward();
      loss_of(*twin, batch(step)).backward();
      optimizer.step();
      twins.step();
      zero_grad(*sharded.module);
      twins.zero_grad();
      expect_right_or_refused([&](std::ostream& file) { torch::save(sharded.module, file); }, *twin);
    }
  });
}

TEST(ModuleFunctions, NothingIsReadWhileWeightsAreOnTheirWay) {
  for (const Strategy strategy : kFlatStrategies) {
    SCOPED_TRACE(name(strategy));
    std::latch saved(1);
    run_ranks(2, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      Pair pair(world, options);
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& leaf : parameters(pair.module())) leaf.add_(1);
        for (torch::Tensor& parameter : pair.twin->parameters()) parameter.add_(1);
      }
      if (world.rank == 1) saved.wait();  // so that rank 0's gather has not ended
      UnshardHandle handle = pair.sharded.blocks[1].unshard_async();
      if (world.rank == 0) {
        const std::shared_ptr<std::latch> end(&saved, [](std::latch* latch) { latch->count_down(); });
        const torch::nn::Linear& layer = pair.module().block(1).down;  // rank 1's part
        const std::string error = text_of([&] {
          std::stringstream file;
          torch::save(layer, file);
          torch::nn::Linear read = testing::make_seeded(1, [&] { return torch::nn::Linear(layer->options); });
          torch::load(read, file);
          expect_close(read->weight, pair.twin->block(1).down->weight);
        });
        if (error != "no error") {
          EXPECT_THAT(error, HasSubstr("'layers.1' is sharded"));
        }
      }
      handle.wait();
      expect_close(pair.module().block(1).down->weight.detach().clone(), pair.twin->block(1).down->weight);
    });
  }
}

TEST(ModuleFunctions, InOneWorldOfOneTorchSaveIsRight) {
  run_ranks(1, [](const World& world) {
    Pair pair(world);
    pair.step(1);
    EXPECT_EQ(text_of([&] {
                std::stringstream file;
                torch::save(pair.sharded.module, file);
              }),
              "no error");
  });
}

TEST(ModuleFunctions, WithinFullParametersTorchSaveIsRight) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    pair.step(1);
    std::stringstream file;
    {
      const auto scope = full_parameters(pair.sharded.root);
      torch::save(pair.sharded.module, file);
    }
    const auto read = make_block_model();
    torch::load(read, file);
    for (size_t i = 0; i < read->parameters().size(); ++i) {
      expect_close(read->parameters()[i], pair.twin->parameters()[i]);
    }
  });
}

TEST(ModuleFunctions, PointersAreRightOrRefused) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const auto look = [&] {
      const torch::Tensor weight = pair.module().block(1).up->weight;
      float value = 0;
      const std::string error = text_of([&] { value = weight.accessor<float, 2>()[2][1]; });
      if (error == "no error") {
        EXPECT_NEAR(value, (pair.twin->block(1).up->weight.index({2, 1}).item<float>()), 1e-5);
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("'layers.1' is sharded"), HasSubstr("fsdp::touch({weight})")));
      }
      EXPECT_EQ(text_of([&] { touch({weight}); }), "no error");
      value = weight.accessor<float, 2>()[2][1];
      EXPECT_NEAR(value, (pair.twin->block(1).up->weight.index({2, 1}).item<float>()), 1e-5);
    };
    look();
    for (uint64_t step = 0; step < 2; ++step) {
      pair.step(step);
      look();
    }
  });
}

// ---- copies and conversions

TEST(ModuleFunctions, CloneIsAnUnshardedModelWithTheWeights) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto module = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(5, 6), torch::nn::Linear(6, 3));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : module->parameters())
      parameter.copy_(torch::arange(parameter.numel()).view_as(parameter));
    const torch::Tensor x = torch::ones({2, 5});
    const torch::Tensor want = module->forward(x);
    fully_shard(*module, Mesh::shard(world), options);
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module->clone());
    expect_close(copy->forward(x), want);
    copy->parameters()[0].zero_();
    expect_close(module->forward(x), want);
  });
}

TEST(ModuleFunctions, ConversionsToWhatItIsChangeNothing) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    pair.step(1);
    pair.module().to(torch::kCPU);
    pair.module().to(torch::kFloat);
    pair.module().eval();
    pair.module().train();
    pair.module().apply([](torch::nn::Module& module) { module.train(); });
    pair.step(2);
    expect_same_weights(pair.module(), *pair.twin);
  });
}

TEST(ModuleFunctions, LoadIsRefused) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    std::stringstream file;
    torch::save(make_block_model(), file);
    EXPECT_THAT(error_of([&] {
                  torch::load(sharded.module, file);
                  loss_of(*sharded.module, share_of(world, batch(1))).backward();
                }),
                HasSubstr("left the buffer it was sharded into: Module::to(), torch::load()"));
  });
}

// ---- parameters that come later

TEST(ModuleFunctions, AModuleReplacedAfterShardingIsRefusedByName) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    sharded.module->outlet = sharded.module->replace_module("outlet", torch::nn::Linear(BlockModel::kWidth, 2));
    EXPECT_THAT(error_of([&] { parameters(*sharded.module); }),
                AllOf(HasSubstr("'outlet.weight'"), HasSubstr("ignored_parameters"), HasSubstr("fully_shard")));
  });
}

TEST(ModuleFunctions, AParameterRegisteredAfterShardingIsRefusedByName) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    parameters(*sharded.module);
    sharded.module->register_parameter("late", torch::ones({3}));
    EXPECT_THAT(error_of([&] { zero_grad(*sharded.module); }), HasSubstr("'late'"));
    EXPECT_THAT(error_of([&] { clip_grad_norm_(*sharded.module, 1.0); }), HasSubstr("'late'"));
  });
}

// ---- averages, regularisers, vectors

TEST(ModuleFunctions, AnAverageOfModuleParametersIsRight) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const auto average = [](std::vector<torch::Tensor>& shadow, const torch::nn::Module& module) {
      const torch::NoGradGuard no_grad;
      const auto weights = module.parameters();
      for (size_t i = 0; i < shadow.size(); ++i) shadow[i].mul_(0.9).add_(weights[i], 0.1);
    };
    const auto copy = [](const torch::nn::Module& module) {
      std::vector<torch::Tensor> copies;
      for (const torch::Tensor& weight : module.parameters()) copies.push_back(weight.detach().clone());
      return copies;
    };
    std::vector<torch::Tensor> shadow = copy(pair.module()), twins = copy(*pair.twin);
    for (uint64_t step = 0; step < 3; ++step) {
      pair.step(step);
      average(shadow, pair.module());
      average(twins, *pair.twin);
    }
    for (size_t i = 0; i < shadow.size(); ++i) expect_close(shadow[i], twins[i]);
  });
}

torch::Tensor penalty(const std::vector<torch::Tensor>& weights) {
  torch::Tensor sum = torch::zeros({});
  for (const torch::Tensor& weight : weights) sum = sum + 0.01 * weight.square().sum();
  return sum;
}

TEST(ModuleFunctions, APenaltyOnModuleParametersIsRight) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    for (uint64_t step = 0; step < 2; ++step) {
      (loss_of(pair.module(), share_of(world, batch(step))) + penalty(pair.module().parameters())).backward();
      (loss_of(*pair.twin, batch(step)) + penalty(pair.twin->parameters())).backward();
      pair.optimizer.step();
      pair.twins.step();
      pair.optimizer.zero_grad();
      pair.twins.zero_grad();
    }
    expect_same_weights(pair.module(), *pair.twin);
  });
}

TEST(ModuleFunctions, APenaltyOnLeavesIsRightOrRefused) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const std::string error = error_of([&] {
      for (uint64_t step = 0; step < 2; ++step) {
        (loss_of(pair.module(), share_of(world, batch(step))) + penalty(parameters(pair.module()))).backward();
        pair.optimizer.step();
        pair.optimizer.zero_grad();
      }
    });
    if (error != "no error") {
      EXPECT_THAT(error, HasSubstr("module->parameters()"));
      return;
    }
    for (uint64_t step = 0; step < 2; ++step) {
      (loss_of(*pair.twin, batch(step)) + penalty(pair.twin->parameters())).backward();
      pair.twins.step();
      pair.twins.zero_grad();
    }
    expect_same_weights(pair.module(), *pair.twin);
  });
}

TEST(ModuleFunctions, ParametersToVectorIsRight) {
  for_worlds([](const World& world) {
    Pair pair(world);
    pair.step(1);
    expect_close(torch::nn::utils::parameters_to_vector(pair.module().parameters()),
                 torch::nn::utils::parameters_to_vector(pair.twin->parameters()));
  });
}

TEST(ModuleFunctions, VectorToParametersIsRefused) {
  for_worlds([](const World& world) {
    Pair pair(world);
    const auto whole = torch::nn::utils::parameters_to_vector(pair.module().parameters()).detach();
    torch::nn::utils::vector_to_parameters(whole, pair.module().parameters());
    EXPECT_THAT(error_of([&] { zero_grad(pair.module()); }), HasSubstr("left the buffer it was sharded into"));
  });
  for_worlds([](const World& world) {
    Pair pair(world);
    const auto leaves = parameters(pair.module());
    torch::nn::utils::vector_to_parameters(torch::nn::utils::parameters_to_vector(leaves).detach(), leaves);
    EXPECT_THAT(error_of([&] { zero_grad(pair.module()); }), HasSubstr("left the main weight"));
  });
}

TEST(ModuleFunctions, AutogradGradGivesThisRanksGradient) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const torch::Tensor rows = share_of(world, batch(1));
    const auto got = torch::autograd::grad({loss_of(pair.module(), rows)}, pair.module().parameters());
    const auto want = torch::autograd::grad({loss_of(*pair.twin, rows)}, pair.twin->parameters());
    for (size_t i = 0; i < want.size(); ++i) expect_close(got[i], want[i]);
  });
}

TEST(ModuleFunctions, OurClippingIsThatOfLibTorchInAnyNorm) {
  for_strategies([](const World& world, const ShardOptions& options) {
    for (const double p : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(p);
      Pair pair(world, options);
      pair.backward(1);
      const double norm = torch::nn::utils::clip_grad_norm_(pair.twin->parameters(), 0.05, p);
      EXPECT_NEAR(clip_grad_norm_(pair.module(), 0.05, p).item<double>(), norm, 1e-5 * norm);
      expect_same_gradients(pair.module(), *pair.twin);
    }
    Pair pair(world, options);
    EXPECT_THAT(error_of([&] { clip_grad_norm_(pair.module(), 1.0, 0); }), HasSubstr("norm_type: got 0"));
  });
}

// ---- torch::data

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(size_t index) override {
    return {batch(index, 1).squeeze(0), torch::tensor(static_cast<int64_t>(index))};
  }
  torch::optional<size_t> size() const override { return 12; }
};

// The loop that docs/any_model.md shows.
TEST(ModuleFunctions, ADistributedSamplerGivesEachRankItsShareOfAnEpoch) {
  for_worlds([](const World& world) {
    Pair pair(world);
    const auto loader = torch::data::make_data_loader(
        Numbers().map(torch::data::transforms::Stack<>()),
        torch::data::samplers::DistributedSequentialSampler(12, static_cast<size_t>(world.size),
                                                            static_cast<size_t>(world.rank)),
        torch::data::DataLoaderOptions().batch_size(static_cast<size_t>(12 / world.size)).workers(1));
    double mean = 0;
    for (const auto& example : *loader) {
      const torch::Tensor loss = loss_of(pair.module(), example.data);
      loss.backward();
      mean = sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    }
    std::vector<torch::Tensor> all;
    for (size_t i = 0; i < 12; ++i) all.push_back(batch(i, 1).squeeze(0));
    const torch::Tensor loss = loss_of(*pair.twin, torch::stack(all));
    loss.backward();
    EXPECT_NEAR(mean, loss.item<double>(), 1e-5);
    expect_same_gradients(pair.module(), *pair.twin);
  });
}

// ---- torch::optim

template <class Optimizer, class Options>
void expect_refused_before_sharding(const Options& rates) {
  for_worlds([&](const World& world) {
    const auto module = make_block_model();
    Optimizer optimizer(module->parameters(), rates);
    fully_shard(*module, Mesh::shard(world));
    const auto train = [&] {
      for (int step = 0; step < 2; ++step) {
        loss_of(*module, share_of(world, batch(1))).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    EXPECT_THAT(error_of(train), HasSubstr("fsdp::parameters("));
  });
}

TEST(ModuleFunctions, OptimizersMadeBeforeShardingAreRefused) {
  expect_refused_before_sharding<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_refused_before_sharding<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  expect_refused_before_sharding<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
  expect_refused_before_sharding<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1));
}

template <class Optimizer, class Options>
void expect_parity(const Options& rates) {
  for_worlds([&](const World& world) {
    Pair pair(world);
    Optimizer optimizer(parameters(pair.module()), rates);
    Optimizer twins(pair.twin->parameters(), rates);
    for (uint64_t step = 0; step < 3; ++step) {
      pair.backward(step);
      optimizer.step();
      twins.step();
      optimizer.zero_grad();
      twins.zero_grad();
    }
    expect_same_weights(pair.module(), *pair.twin, 1e-4);
  });
}

TEST(ModuleFunctions, ElementwiseOptimizersOfLibTorchAreRight) {
  expect_parity<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  expect_parity<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  expect_parity<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  expect_parity<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01));
  expect_parity<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
}

TEST(ModuleFunctions, LbfgsIsRefusedWhereLeavesAreSlices) {
  for_worlds([](const World& world) {
    Pair pair(world);
    torch::optim::LBFGS optimizer(parameters(pair.module()), torch::optim::LBFGSOptions(0.5).max_iter(3));
    const auto train = [&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        const torch::Tensor loss = loss_of(pair.module(), share_of(world, batch(1)));
        loss.backward();
        return loss;
      });
      zero_grad(pair.module());
    };
    if (world.size > 1) {
      EXPECT_THAT(error_of(train), HasSubstr("this rank's slice"));
      return;
    }
    EXPECT_EQ(error_of(train), "no error");
    torch::optim::LBFGS twins(pair.twin->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(3));
    twins.step([&] {
      twins.zero_grad();
      const torch::Tensor loss = loss_of(*pair.twin, batch(1));
      loss.backward();
      return loss;
    });
    expect_same_weights(pair.module(), *pair.twin);
  });
}

TEST(ModuleFunctions, SchedulersOfLibTorchChangeTheRate) {
  for_worlds([](const World& world) {
    Pair pair(world);
    torch::optim::StepLR schedule(pair.optimizer, 1, 0.5), twins(pair.twins, 1, 0.5);
    for (uint64_t step = 0; step < 3; ++step) {
      pair.step(step);
      schedule.step();
      twins.step();
    }
    expect_same_weights(pair.module(), *pair.twin);
  });
}

// ---- torch::nn::init, hooks, freezing

TEST(ModuleFunctions, InitialisingAShardedWeightIsRefused) {
  for_worlds([](const World& world) {
    Pair pair(world);
    torch::nn::init::xavier_uniform_(pair.module().inlet->weight);
    const std::string error = error_of([&] { zero_grad(pair.module()); });
    if (world.size > 1) {
      EXPECT_THAT(error, AllOf(HasSubstr("'inlet.weight'"), HasSubstr("WriteBack::kYes")));
    } else {
      EXPECT_EQ(error, "no error");  // it is the weight itself
    }
  });
}

TEST(ModuleFunctions, HooksOnModuleParametersScaleGradients) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Pair pair(world, options);
    const auto halve = [](const torch::Tensor& gradient) { return gradient * 0.5; };
    pair.module().block(1).up->weight.register_hook(halve);
    pair.twin->block(1).up->weight.register_hook(halve);
    pair.backward(1);
    expect_same_gradients(pair.module(), *pair.twin);
  });
}

}  // namespace
}  // namespace fsdp::module_functions_test
