// What a unit may be made of: several modules, what a policy chooses, parameters of several meshes and dtypes, frozen
// ones and ones that a step leaves out. Each trains like its unsharded self.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/promise/zoo/zoo.h"
#include "tests/support/ranks.h"

namespace fsdp::units_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::batch;
using testing::BlockImpl;
using testing::BlockModel;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::make_block_model;
using testing::make_seeded;
using testing::run_ranks;
using testing::share_of;

constexpr uint64_t kModelSeed = 30851;

struct Schedule {
  int num_steps = 3;
  std::function<void(int step, nn::Module& module)> before_step;  // of both models
};

// Same steps of both, with momentum.
template <class Model>
void expect_training_parity(const World& world, Model& sharded, Model& plain, const Schedule& schedule = {}) {
  SGD optimizer(parameters(sharded), {.lr = 0.05, .momentum = 0.9});
  torch::optim::SGD plain_optimizer(plain.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < schedule.num_steps; ++step) {
    SCOPED_TRACE(c10::str("step ", step, ", rank ", world.rank, " of ", world.size));
    if (schedule.before_step) {
      schedule.before_step(step, sharded);
      schedule.before_step(step, plain);
    }
    const torch::Tensor rows = batch(static_cast<uint64_t>(step));
    sharded.forward(share_of(world, rows)).square().mean().backward();
    plain.forward(rows).square().mean().backward();
    expect_same_gradients(sharded, plain);
    optimizer.step();
    plain_optimizer.step();
    zero_grad(sharded);
    plain_optimizer.zero_grad();
  }
  expect_same_weights(sharded, plain);
}

// ---- several modules in one unit

struct SharedUnits {
  std::shared_ptr<BlockModel> module;
  Unit root;
};

SharedUnits shard_pairs(const World& world) {
  const auto module = make_block_model();
  const Mesh mesh = Mesh::shard(world);
  fully_shard({module->inlet.get(), module->outlet.get()}, mesh);
  fully_shard({&module->block(0), &module->block(1)}, mesh);
  fully_shard(module->block(2), mesh);
  return {module, fully_shard(*module, mesh)};
}

TEST(UnitOfSeveralModules, TrainsLikeTheUnshardedModel) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const World& world) {
      SharedUnits pairs = shard_pairs(world);
      EXPECT_EQ(pairs.root.num_units(), 4);  // the root has no parameters left
      expect_training_parity(world, *pairs.module, *make_block_model());
      EXPECT_EQ(pairs.root.counters().resident_unsharded_bytes, 0);
    });
  }
}

// U = 3; k = 1: inlet and outlet, which the forward reads first and last, so that they stay.
TEST(UnitOfSeveralModules, IsGatheredAndReducedAsOne) {
  run_ranks(2, [](const World& world) {
    SharedUnits pairs = shard_pairs(world);
    SGD optimizer(parameters(*pairs.module), {.lr = 0.05});
    for (int step = 0; step < 3; ++step) {
      pairs.root.reset_counters();
      testing::loss_of(*pairs.module, share_of(world, batch(1))).backward();
      optimizer.step();
      zero_grad(*pairs.module);
      if (step > 0) {
        EXPECT_EQ(pairs.root.counters().gathers, 2 * 3 - 1);
      }
      EXPECT_EQ(pairs.root.counters().reduces, 3);
    }
  });
}

TEST(UnitOfSeveralModules, IsNamedAfterAllOfThem) {
  run_ranks(2, [](const World& world) {
    SharedUnits pairs = shard_pairs(world);
    EXPECT_THAT(pairs.root.describe(), AllOf(HasSubstr("inlet+outlet"), HasSubstr("layers.0+layers.1")));
    const torch::NoGradGuard no_grad;
    pairs.module->block(1).up->bias.zero_();
    EXPECT_THAT(error_of([&] { zero_grad(*pairs.module); }), HasSubstr("'layers.1.up.bias'"));
  });
}

TEST(UnitOfSeveralModules, EmptyListsAndModulesInEachOtherAreRefused) {
  run_ranks(1, [](const World& world) {
    const auto module = make_block_model();
    const Mesh mesh = Mesh::shard(world);
    EXPECT_THAT(error_of([&] { fully_shard(std::vector<nn::Module*>{}, mesh); }), HasSubstr("empty list"));
    EXPECT_THAT(error_of([&] {
                  fully_shard({module.get(), module->outlet.get()}, mesh);
                }),
                HasSubstr("module 1 of the list lies in module 0"));
  });
}

TEST(UnitOfSeveralModules, RefusalsNameTheModuleByItsPosition) {
  run_ranks(1, [](const World& world) {
    nn::Linear fine(3, 4);
    nn::Linear turned(3, 4);
    turned->weight.set_data(torch::zeros({3, 1}).expand({3, 4}));
    EXPECT_THAT(error_of([&] {
                  fully_shard({fine.get(), turned.get()}, Mesh::shard(world));
                }),
                AllOf(HasSubstr("'1.weight'"), HasSubstr("contiguous")));
    turned->weight.set_data(torch::zeros({3}, torch::kComplexFloat));
    EXPECT_THAT(error_of([&] {
                  fully_shard({fine.get(), turned.get()}, Mesh::shard(world));
                }),
                AllOf(HasSubstr("'1.weight'"), HasSubstr("Complex")));
  });
}

// ---- units that a policy chooses

void expect_policy_parity(const WrapPolicy& policy, int64_t num_units) {
  run_ranks(2, [&](const World& world) {
    const auto sharded = make_block_model();
    const Unit root = shard_where(*sharded, policy, Mesh::shard(world));
    EXPECT_EQ(root.num_units(), num_units);
    expect_training_parity(world, *sharded, *make_block_model());
  });
}

TEST(ShardWhere, ByType) { expect_policy_parity(by_type<BlockImpl>(), 3 + 1); }

// A block has 126 + 114 elements in two layers, and nothing of its own.
TEST(ShardWhere, BySize) {
  expect_policy_parity(by_size(200), 3 + 1);
  expect_policy_parity(by_size(100), 6 + 1);
  expect_policy_parity(by_size(120), 3 + 1);  // `up` alone; what is left of a block, 114, stays with the root
  expect_policy_parity(by_size(1000), 1);
}

TEST(ShardWhere, NestedUnits) {
  const auto both = [](const std::string& name, const nn::Module& module, int64_t) {
    return name.ends_with(".up") || dynamic_cast<const BlockImpl*>(&module) != nullptr;
  };
  expect_policy_parity(both, 6 + 1);
  run_ranks(1, [&](const World& world) {
    const auto module = make_block_model();
    const Unit root = shard_where(*module, both, Mesh::shard(world));
    EXPECT_THAT(root.describe(), AllOf(HasSubstr("  layers.2 "), HasSubstr("    layers.2.up ")));
  });
}

TEST(ShardWhere, AsksInnerModulesFirstAndTellsWhatIsLeft) {
  run_ranks(1, [](const World& world) {
    std::vector<std::string> asked;
    const auto policy = [&](const std::string& name, const nn::Module&, int64_t numel) {
      asked.push_back(c10::str(name, " ", numel));
      return name == "layers.0.up";
    };
    const auto module = make_block_model(1);
    shard_where(*module, policy, Mesh::shard(world));
    EXPECT_THAT(asked, ElementsAre("inlet 36", "layers.0.up 126", "layers.0.down 114", "layers.0 114", "layers 114",
                                   "outlet 21"));
  });
}

TEST(ShardWhere, ASharedModuleIsAskedAboutOnce) {
  struct Twice : nn::Module {
    Twice() {
      first = register_module("first", nn::Linear(5, 5));
      register_module("again", first);
    }
    torch::Tensor forward(const torch::Tensor& x) { return first(torch::tanh(first(x))); }
    nn::Linear first{nullptr};
  };
  run_ranks(2, [](const World& world) {
    const auto make = [] { return std::make_shared<Twice>(); };
    const auto sharded = make_seeded(kModelSeed, make);
    std::vector<std::string> asked;
    const auto policy = [&](const std::string& name, const nn::Module&, int64_t) {
      asked.push_back(name);
      return false;
    };
    EXPECT_EQ(shard_where(*sharded, policy, Mesh::shard(world)).num_units(), 1);
    EXPECT_THAT(asked, ElementsAre("first"));
    const auto plain = make_seeded(kModelSeed, make);
    sharded->forward(share_of(world, batch(1))).square().mean().backward();
    plain->forward(batch(1)).square().mean().backward();
    expect_same_gradients(*sharded, *plain);
  });
}

torch::jit::Module make_script() {
  return std::get<torch::jit::Module>(make_seeded(kModelSeed, testing::zoo_case("scripted").make).roots[0].module);
}

TEST(ShardWhere, TorchScriptByClassAndBySize) {
  run_ranks(2, [](const World& world) {
    std::vector<std::string> asked;
    const auto policy = [&](const std::string& name, const std::string& type, int64_t numel) {
      asked.push_back(c10::str(name, " ", type, " ", numel));
      return type == "second";
    };
    torch::jit::Module by_class = make_script();
    EXPECT_EQ(shard_where(by_class, policy, Mesh::shard(world)).num_units(), 2);
    EXPECT_THAT(asked, ElementsAre("first first 54", "second second 90", "third third 70"));
    torch::jit::Module by_size = make_script();
    EXPECT_EQ(shard_where(by_size, script_by_size(60), Mesh::shard(world)).num_units(), 3);
  });
}

// ---- groups of one unit

bool is_weight(const std::string& name) { return name.ends_with("weight"); }

// Weights are cut over all four ranks, biases over two of them and repeated.
TEST(UnitGroups, ParametersOfTwoMeshes) {
  for (const Strategy strategy : {Strategy::kOptimGradsParams, Strategy::kOptimGrads, Strategy::kOptim}) {
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      options.mesh_of = [&](const std::string& name) {
        return is_weight(name) ? std::optional<Mesh>(Mesh::shard(world)) : std::nullopt;
      };
      auto sharded = testing::shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
      for (const auto& [name, leaf] : named_parameters(*sharded.module)) {
        const torch::Tensor copies = sum_over_ranks(world, torch::full({1}, leaf.numel(), torch::kLong));
        const int64_t numel = c10::multiply_integers(logical_sizes(leaf));
        EXPECT_EQ(copies.item<int64_t>(), is_weight(name) ? numel : 2 * numel) << name;
      }
      expect_training_parity(world, *sharded.module, *make_block_model());
      EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
    });
  }
}

TEST(UnitGroups, AMeshThatCannotBeIsRefused) {
  run_ranks(2, [](const World& world) {
    ShardOptions options;
    options.mesh_of = [&](const std::string&) { return Mesh(world, {{"tensor", 2}, {"shard", 1}}); };
    const auto module = make_block_model();
    EXPECT_THAT(error_of([&] { fully_shard(*module, Mesh::shard(world), options); }),
                HasSubstr("'tensor' has 2 ranks"));
  });
}

struct MixedPrecise : nn::Module {
  MixedPrecise() {
    inlet = register_module("inlet", nn::Linear(5, 4));
    scale = register_parameter("scale", torch::randn({4}, torch::kDouble));
    outlet = register_module("outlet", nn::Linear(4, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return outlet((torch::tanh(inlet(x)).to(torch::kDouble) * scale).to(torch::kFloat));
  }
  nn::Linear inlet{nullptr};
  torch::Tensor scale;
  nn::Linear outlet{nullptr};
};

TEST(UnitGroups, TrainableParametersOfTwoDtypes) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const World& world) {
      const auto make = [] { return std::make_shared<MixedPrecise>(); };
      const auto sharded = make_seeded(kModelSeed, make);
      const auto plain = make_seeded(kModelSeed, make);
      fully_shard(*sharded, Mesh::shard(world));
      const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
      torch::optim::SGD optimizer(parameters(*sharded), options);  // ours is for fp32 leaves
      torch::optim::SGD plain_optimizer(plain->parameters(), options);
      for (uint64_t step = 0; step < 3; ++step) {
        sharded->forward(share_of(world, batch(step))).square().mean().backward();
        plain->forward(batch(step)).square().mean().backward();
        expect_same_gradients(*sharded, *plain);
        for (auto* each : {&optimizer, &plain_optimizer}) {
          each->step();
          each->zero_grad();
        }
      }
      expect_same_weights(*sharded, *plain);
    });
  }
}

void freeze(nn::Module& module, bool frozen) {
  for (torch::Tensor& parameter : module.parameters()) parameter.requires_grad_(!frozen);
}

// Frozen when it was sharded, then trained, then partly and wholly frozen again.
TEST(UnitGroups, FrozenThenTrainedThenFrozen) {
  const auto before_step = [](int step, nn::Module& module) {
    auto& model = dynamic_cast<BlockModel&>(module);
    freeze(model.block(1), step < 2);
    freeze(model.block(0), step == 4);
    freeze(*model.inlet, step == 5);
    if (step >= 3 && step < 6) model.block(1).up->weight.requires_grad_(false);
  };
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      const auto sharded = make_block_model();
      freeze(sharded->block(1), true);
      ShardOptions options;
      options.strategy = strategy;
      for (size_t i = 0; i < 3; ++i) fully_shard(sharded->block(i), Mesh::shard(world), options);
      const Unit root = fully_shard(*sharded, Mesh::shard(world), options);
      expect_training_parity(world, *sharded, *make_block_model(), {7, before_step});
      EXPECT_EQ(root.counters().resident_unsharded_bytes, 0);
    });
  }
}

// ---- units that a step leaves out

struct Branching : nn::Module {
  Branching() {
    always = register_module("always", nn::Linear(5, 4));
    branch = register_module("branch", nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x, bool use) { return use ? branch(torch::tanh(always(x))) : always(x); }
  nn::Linear always{nullptr};
  nn::Linear branch{nullptr};
};

// A sharded Branching, an unsharded one, and steps in which each rank takes the branch or does not.
class BranchingPair {
 public:
  BranchingPair(const World& world, UnusedUnit unused, Strategy strategy = Strategy::kOptimGradsParams)
      : world_(world) {
    ShardOptions options;
    options.strategy = strategy;
    options.unused = unused;
    fully_shard(*sharded->branch, Mesh::shard(world), options);
    options.unused = UnusedUnit::kSkip;
    root.emplace(fully_shard(*sharded, Mesh::shard(world), options));
    optimizer.emplace(parameters(*sharded), SGDOptions{.lr = 0.05});
  }

  void backward(uint64_t seed, const std::vector<bool>& uses) {
    const bool mine = uses[static_cast<size_t>(world_.rank)];
    sharded->forward(share_of(world_, batch(seed)), mine).square().mean().backward();
  }

  void plain_backward(uint64_t seed, const std::vector<bool>& uses) {
    World place = world_;
    for (place.rank = 0; place.rank < place.size; ++place.rank) {
      const bool use = uses[static_cast<size_t>(place.rank)];
      (plain->forward(share_of(place, batch(seed)), use).square().mean() / place.size).backward();
    }
  }

  void step_both() {
    optimizer->step();
    plain_optimizer.step();
    zero_grad(*sharded);
    plain_optimizer.zero_grad();
    expect_same_weights(*sharded, *plain);
  }

  std::shared_ptr<Branching> sharded = make_seeded(kModelSeed, [] { return std::make_shared<Branching>(); });
  std::shared_ptr<Branching> plain = make_seeded(kModelSeed, [] { return std::make_shared<Branching>(); });
  std::optional<Unit> root;
  std::optional<SGD> optimizer;
  torch::optim::SGD plain_optimizer{plain->parameters(), torch::optim::SGDOptions(0.05)};

 private:
  World world_;
};

TEST(UnusedUnits, SkippedByAllRanksKeepTheirWeights) {
  run_ranks(2, [](const World& world) {
    BranchingPair pair(world, UnusedUnit::kSkip);
    for (uint64_t step = 0; step < 4; ++step) {
      const std::vector<bool> uses(2, step % 2 == 1);
      pair.backward(step, uses);
      pair.plain_backward(step, uses);
      expect_same_gradients(*pair.sharded, *pair.plain);  // undefined where the branch was left out
      pair.step_both();
    }
  });
}

TEST(UnusedUnits, OnSomeRanksCountAsZero) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(3, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      BranchingPair pair(world, UnusedUnit::kZeros, strategy);
      for (size_t step = 0; step < 4; ++step) {
        std::vector<bool> uses(3, false);
        uses[step % 3] = true;
        pair.backward(step, uses);
        pair.plain_backward(step, uses);
        expect_same_gradients(*pair.sharded, *pair.plain);
        pair.step_both();
        EXPECT_EQ(pair.root->counters().resident_unsharded_bytes, 0);
      }
    });
  }
}

TEST(UnusedUnits, OnNoRankCountAsZeroToo) {
  run_ranks(2, [](const World& world) {
    BranchingPair pair(world, UnusedUnit::kZeros);
    pair.backward(1, {false, false});
    for (const torch::Tensor& leaf : parameters(*pair.sharded->branch)) {
      ASSERT_TRUE(leaf.grad().defined());
      EXPECT_EQ(leaf.grad().count_nonzero().item<int64_t>(), 0);
    }
    pair.plain_backward(1, {false, false});
    pair.step_both();
  });
}

TEST(UnusedUnits, AreAnErrorWhereAskedForAndTheNextStepIsClean) {
  run_ranks(2, [](const World& world) {
    BranchingPair pair(world, UnusedUnit::kError);
    EXPECT_THAT(error_of([&] {
                  pair.backward(1, {false, false});
                }),
                AllOf(HasSubstr("'branch' was not used in this step"), HasSubstr("UnusedUnit::kError")));
    zero_grad(*pair.sharded);
    for (uint64_t step = 2; step < 4; ++step) {
      pair.backward(step, {true, true});
      pair.plain_backward(step, {true, true});
      expect_same_gradients(*pair.sharded, *pair.plain);
      pair.step_both();
    }
  });
}

}  // namespace
}  // namespace fsdp::units_test
