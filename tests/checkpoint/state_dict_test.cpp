// State dicts against the unsharded twin: what FSDP1's FULL_, SHARDED_ and LOCAL_STATE_DICT are used for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::state_dict_test {
namespace {

using ::testing::AllOf;
using testing::batch;
using testing::error_of;
using testing::expect_same_weights;
using testing::for_strategies;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

// A model that has trained three steps with momentum.
struct Trained {
  explicit Trained(const World& world, Strategy strategy = Strategy::kOptimGradsParams)
      : sharded(shard_blocks(world, {.strategy = strategy})), optimizer(parameters(*sharded.module), {.lr = 0.01}) {
    for (uint64_t step = 0; step < 3; ++step) train(world, step);
  }
  void train(const World& world, uint64_t step) {
    loss_of(*sharded.module, share_of(world, batch(step))).backward();
    optimizer.step();
    zero_grad(*sharded.module);
  }
  ShardedBlocks sharded;
  AdamW optimizer;
};

struct Twin {
  Twin() : optimizer(module->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.01)) {
    for (uint64_t step = 0; step < 3; ++step) train(step);
  }
  void train(uint64_t step) {
    loss_of(*module, batch(step)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  torch::Tensor moment(const torch::Tensor& parameter) {
    const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdamWParamState&>(state).exp_avg();
  }
  std::shared_ptr<testing::BlockModel> module = make_block_model();
  torch::optim::AdamW optimizer;
};

TEST(StateDict, AFullOneHasTheTensorsOfTheUnshardedModel) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Trained trained(world, options.strategy);
    Twin twin;
    const StateDict weights = full_state_dict(*trained.sharded.module);
    const StateDict moments = full_optimizer_state_dict(*trained.sharded.module, trained.optimizer);
    EXPECT_EQ(weights.tensors.size(), twin.module->parameters().size());
    for (const auto& item : twin.module->named_parameters()) {
      EXPECT_TRUE(torch::allclose(weights.tensors.at(item.key()), item.value(), 1e-4, 1e-5)) << item.key();
      EXPECT_TRUE(torch::allclose(moments.tensors.at("exp_avg/" + item.key()), twin.moment(item.value()), 1e-4, 1e-5))
          << item.key();
      EXPECT_EQ(moments.tensors.at("step/" + item.key()).item<int64_t>(), 3);
    }
    trained.train(world, 3);  // copies: what is written now leaves them alone
    EXPECT_TRUE(torch::allclose(weights.tensors.at("inlet.weight"), twin.module->inlet->weight, 1e-4, 1e-5));
  });
}

TEST(StateDict, FullGradientsAreThoseOfTheUnshardedModel) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const ShardedBlocks sharded = shard_blocks(world, options);
    const auto twin = make_block_model();
    EXPECT_TRUE(full_gradients(*sharded.module).tensors.empty());
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    loss_of(*twin, batch(1)).backward();
    const StateDict gradients = full_gradients(*sharded.module);
    for (const auto& item : twin->named_parameters()) {
      EXPECT_TRUE(torch::allclose(gradients.tensors.at(item.key()), item.value().grad(), 1e-4, 1e-6)) << item.key();
    }
  });
}

TEST(StateDict, OnlyRankZeroHoldsItWhereThatIsAskedFor) {
  run_ranks(3, [](const World& world) {
    Trained trained(world);
    const StateDict dict = full_state_dict(*trained.sharded.module, DictHolder::kRankZero);
    EXPECT_EQ(dict.tensors.empty(), world.rank != 0);
    const StateDict all = full_state_dict(*trained.sharded.module);
    for (const auto& [name, tensor] : dict.tensors) EXPECT_TRUE(torch::equal(tensor, all.tensors.at(name))) << name;
  });
}

TEST(StateDict, AFullOneGoesToAnyWorldAndTrainingGoesOn) {
  StateDict weights, moments;
  run_ranks(3, [&](const World& world) {
    Trained trained(world);
    const StateDict model = full_state_dict(*trained.sharded.module, DictHolder::kRankZero);
    const StateDict optimizer = full_optimizer_state_dict(*trained.sharded.module, trained.optimizer);
    if (world.rank != 0) return;
    weights = model;
    moments = optimizer;
  });
  Twin twin;
  twin.train(3);
  for (const DictHolder holder : {DictHolder::kEveryRank, DictHolder::kRankZero}) {
    run_ranks(2, [&](const World& world) {
      ShardedBlocks other = shard_blocks(world);
      AdamW optimizer(parameters(*other.module), {.lr = 0.01});
      const bool has = holder == DictHolder::kEveryRank || world.rank == 0;
      load_full_state_dict(*other.module, has ? weights : StateDict(), holder);
      load_full_optimizer_state_dict(*other.module, optimizer, has ? moments : StateDict(), holder);
      loss_of(*other.module, share_of(world, batch(3))).backward();
      optimizer.step();
      expect_same_weights(*other.module, *twin.module);
    });
  }
}

TEST(StateDict, OneOfAnotherModelIsRefusedOnEveryRankAndChangesNothing) {
  run_ranks(2, [](const World& world) {
    Trained trained(world);
    const StateDict before = full_state_dict(*trained.sharded.module);
    StateDict dict = before;
    for (auto& [name, tensor] : dict.tensors) tensor = torch::zeros_like(tensor);
    dict.tensors.erase("inlet.bias");
    dict.tensors["stranger"] = torch::ones({2});
    dict.tensors["outlet.bias"] = torch::ones({7});
    EXPECT_THAT(error_of([&] { load_full_state_dict(*trained.sharded.module, dict); }),
                AllOf(HasSubstr("inlet.bias is missing"), HasSubstr("stranger belongs to nothing"),
                      HasSubstr("outlet.bias has shape [7]")));
    const StateDict after = full_state_dict(*trained.sharded.module);
    for (const auto& [name, tensor] : before.tensors) EXPECT_TRUE(torch::equal(tensor, after.tensors.at(name)));
  });
}

TEST(StateDict, AShardedOneComesBackToTheSameCut) {
  for_strategies([](const World& world, const ShardOptions& options) {
    Trained trained(world, options.strategy);
    const ShardedStateDict weights = sharded_state_dict(*trained.sharded.module);
    const ShardedStateDict moments = sharded_optimizer_state_dict(*trained.sharded.module, trained.optimizer);
    const StateDict before = full_state_dict(*trained.sharded.module);
    trained.train(world, 3);
    const StateDict then = full_state_dict(*trained.sharded.module);
    load_sharded_state_dict(*trained.sharded.module, weights);
    load_sharded_optimizer_state_dict(*trained.sharded.module, trained.optimizer, moments);
    const StateDict after = full_state_dict(*trained.sharded.module);
    for (const auto& [name, tensor] : before.tensors) EXPECT_TRUE(torch::equal(tensor, after.tensors.at(name)));
    trained.train(world, 3);
    const StateDict again = full_state_dict(*trained.sharded.module);
    for (const auto& [name, tensor] : then.tensors) EXPECT_TRUE(torch::equal(tensor, again.tensors.at(name))) << name;
  });
}

TEST(StateDict, AShardedOneOfAnotherCutIsRefused) {
  run_ranks(2, [](const World& world) {
    Trained trained(world);
    ShardedStateDict dict = sharded_state_dict(*trained.sharded.module);
    dict.slices.front().end += 1;
    dict.slices.front().data = torch::cat({dict.slices.front().data, torch::zeros({1})});
    EXPECT_THAT(error_of([&] { load_sharded_state_dict(*trained.sharded.module, dict); }),
                AllOf(HasSubstr("has elements"), HasSubstr("expected")));
  });
}

// Gate and up projection, in one weight or in two.
struct Gated : torch::nn::Module {
  explicit Gated(bool is_fused) : fused(is_fused) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    if (fused) {
      gate_up = linear("gate_up", 5, 14);
    } else {
      gate = linear("gate", 5, 7);
      up = linear("up", 5, 7);
    }
    down = linear("down", 7, 5);
  }
  torch::Tensor loss(const torch::Tensor& x) {
    const auto parts = fused ? gate_up(x).chunk(2, -1) : std::vector<torch::Tensor>{gate(x), up(x)};
    return down(torch::silu(parts[0]) * parts[1]).square().mean();
  }
  bool fused;
  torch::nn::Linear gate_up{nullptr}, gate{nullptr}, up{nullptr}, down{nullptr};
};

struct TrainedGated {
  TrainedGated(const World& world, bool fused)
      : model(testing::make_seeded(31, [&] { return std::make_shared<Gated>(fused); })),
        root(fully_shard(*model, Mesh::shard(world))),
        optimizer(parameters(*model), {.lr = 0.02}) {}
  void train(const World& world, uint64_t seed) {
    model->loss(share_of(world, batch(seed))).backward();
    optimizer.step();
    zero_grad(*model);
  }
  std::shared_ptr<Gated> model;
  Unit root;
  AdamW optimizer;
};

// "gate_up.weight", or "exp_avg/gate_up.weight", becomes two; what has no rows to divide goes to both.
StateDict with_parts(const StateDict& fused) {
  StateDict split;
  split.values = fused.values;
  const std::string whole = "gate_up.weight";
  for (const auto& [name, tensor] : fused.tensors) {
    if (!name.ends_with(whole)) {
      split.tensors[name] = tensor;
      continue;
    }
    const std::string prefix = name.substr(0, name.size() - whole.size());
    const auto parts = tensor.dim() == 2 ? tensor.chunk(2) : std::vector<torch::Tensor>{tensor, tensor};
    split.tensors[prefix + "gate.weight"] = parts[0];
    split.tensors[prefix + "up.weight"] = parts[1];
  }
  return split;
}

// A model with another layout of the same weights goes on where the first one was.
TEST(StateDict, FusedWeightsAreDividedForAModelThatHasThemApart) {
  StateDict weights, states, expected;
  run_ranks(2, [&](const World& world) {
    TrainedGated fused(world, true);
    for (uint64_t seed = 1; seed <= 3; ++seed) fused.train(world, seed);
    const StateDict now = full_state_dict(*fused.model);
    const StateDict moments = full_optimizer_state_dict(*fused.model, fused.optimizer);
    fused.train(world, 4);
    const StateDict later = full_state_dict(*fused.model);
    if (world.rank == 0) {
      weights = with_parts(now);
      states = with_parts(moments);
      expected = with_parts(later);
    }
  });
  run_ranks(3, [&](const World& world) {
    TrainedGated apart(world, false);
    load_full_state_dict(*apart.model, weights, DictHolder::kRankZero);
    load_full_optimizer_state_dict(*apart.model, apart.optimizer, states, DictHolder::kRankZero);
    apart.train(world, 4);
    for (const auto& [name, weight] : full_state_dict(*apart.model).tensors) {
      EXPECT_TRUE(torch::allclose(weight, expected.tensors.at(name), 1e-4, 1e-5)) << name;
    }
  });
}

}  // namespace
}  // namespace fsdp::state_dict_test
