// Megatron-FSDP, family by family of docs/migration.md: what its documentation shows, written in our names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "kernels/products/linear.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/migration/launched_ranks.h"
#include "tests/promise/migration/twin.h"
#include "tests/promise/models/rounded_twin.h"
#include "tests/support/worlds.h"

namespace fsdp::migration_megatron_test {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace)
using schedule::Schedule;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MigrationMegatron, ChoosingThePath) {
  for_worlds([](const World& world) {
    const auto model = make_block_model();
    for (const auto& unit : *model->layers) fully_shard(*unit, Mesh::shard(world), {.reshard_after_forward = false});
    const Unit root = fully_shard(*model, Mesh::shard(world), {.reshard_after_forward = false});
    EXPECT_EQ(copies_of_main_weights(world, *model), 1);
    expect_trains_as_unsharded(world, *model);
    expect_gathers(counters_of_a_step(world, *model, root), world.size == 1 ? 0 : 4);
  });
}

// ---- sharding and topology

TEST(MigrationMegatron, ShardingAndTopologyStrategies) {
  const struct {
    const char* theirs;
    Strategy ours;
    int instances;
    int64_t copies, gathers, reduces;  // of two microbatches
  } cases[] = {{"no_shard", Strategy::kNoShard, 1, 4, 0, 4},
               {"optim", Strategy::kOptim, 1, 1, 4, 4},
               {"optim_grads", Strategy::kOptimGrads, 1, 1, 2 * 4, 2 * 4},
               {"optim_grads_params", Strategy::kOptimGradsParams, 1, 1, 2 * 6, 2 * 4},
               {"optim_grads_params", Strategy::kOptimGradsParams, 2, 2, 2 * 6, 2 * 4},
               {"hybrid", Strategy::kHybrid, 2, 2, 2 * 6, 2 * 4},
               {"hybrid_optim", Strategy::kHybridOptim, 2, 1, -1, 2 * 4}};
  for (const auto& c : cases) {
    EXPECT_EQ(parse_strategy(c.theirs), c.ours);
    run_ranks(4, [&](const World& world) {
      SCOPED_TRACE(c10::str(c.theirs, " over ", c.instances));
      const Mesh mesh(world, {{"replicate", c.instances}, {"shard", world.size / c.instances}});
      ShardedBlocks sharded = shard_blocks(mesh, {.strategy = c.ours});
      EXPECT_EQ(copies_of_main_weights(world, *sharded.module), c.copies);
      expect_trains_as_unsharded(world, *sharded.module);
      const Counters counters = counters_of_a_step(world, *sharded.module, sharded.root, 2);
      if (c.gathers >= 0) expect_gathers(counters, c.gathers);
      EXPECT_EQ(counters.reduces, c.reduces);
    });
  }
}

TEST(MigrationMegatron, ShardingAndTopologyMeshes) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh = Mesh(world, {{"dp", 2}, {"cp", 2}}).flattened({"dp", "cp"}, "shard");
    EXPECT_EQ(mesh.index("shard"), world.rank);
    EXPECT_THAT(mesh.ranks("shard"), ElementsAre(0, 1, 2, 3));
    const auto model = make_block_model();
    for (const auto& block : *model->layers) {
      fully_shard(*block->as<BlockImpl>()->down, mesh, {.layout = {.granularity = layout::Granularity::kRow}});
      fully_shard(*block, mesh);
    }
    const Unit root = fully_shard(*model, mesh);
    EXPECT_EQ(root.num_units(), 2 * 3 + 1);
    for (const auto& [name, leaf] : named_parameters(*model)) {
      const auto place = place_of(leaf);
      ASSERT_TRUE(place);
      EXPECT_EQ(place->name, name);
      if (name == "layers.1.down.weight") {
        EXPECT_EQ(place->unit, "layers.1.down");
        EXPECT_EQ(place->main_weight, Placement::kShard);
        EXPECT_EQ(local_range(leaf).begin % 18, 0);
        EXPECT_THAT(logical_sizes(leaf), ElementsAre(6, 18));
      }
    }
    expect_trains_as_unsharded(world, *model);
  });
}

template <class Linear>
struct TwoLayers : nn::Module {
  TwoLayers() {
    up = register_module("up", Linear(nn::LinearOptions(5, 8)));
    down = register_module("down", Linear(nn::LinearOptions(8, 5)));
  }
  torch::Tensor loss(const torch::Tensor& x) { return down(torch::tanh(up(x))).square().mean(); }
  Linear up{nullptr}, down{nullptr};
};

TEST(MigrationMegatron, ShardingAndTopologyTensorParallel) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"tp", 2}});
    const auto model = make_seeded(kModelSeed, [] { return std::make_shared<TwoLayers<parallel::Linear>>(); });
    const auto twin = make_seeded(kModelSeed, [] { return std::make_shared<TwoLayers<nn::Linear>>(); });
    parallel::parallelize(*model, {{"up", parallel::Style::kColumn}, {"down", parallel::Style::kRow}}, mesh);
    fully_shard(*model, mesh);
    const auto cut = place_of(model->up->weight)->cut;
    ASSERT_TRUE(cut);
    EXPECT_EQ(cut->dim, 0);
    EXPECT_EQ(cut->index, mesh.index("tp"));
    EXPECT_THAT(cut->sizes, ElementsAre(8, 5));
    AdamW optimizer(parameters(*model), {.lr = 0.01});
    torch::optim::AdamW theirs(twin->parameters(), torch::optim::AdamWOptions(0.01));
    for (const uint64_t seed : {1, 2}) {
      const torch::Tensor rows = batch(seed);
      model->loss(rows.narrow(0, 6 * mesh.index("shard"), 6)).backward();
      twin->zero_grad();
      twin->loss(rows).backward();
      EXPECT_NEAR(clip_grad_norm_(*model, 0.1).item<double>(),
                  torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.1), 1e-5);
      optimizer.step();
      theirs.step();
      zero_grad(*model);
    }
    const StateDict whole = full_state_dict(*model);
    for (const auto& item : twin->named_parameters()) {
      EXPECT_TRUE(torch::allclose(whole.tensors.at(item.key()), item.value(), 1e-3, 1e-4)) << item.key();
    }
  });
}

// ---- initialisation and precision

TEST(MigrationMegatron, InitialisationAndPrecision) {
  run_ranks(1, [](const World& world) {
    torch::manual_seed(kModelSeed);
    const auto model = deferred([] { return std::make_shared<BlockModel>(3); });
    for (const auto& block : *model->layers) fully_shard(*block, Mesh::shard(world));
    fully_shard(*model, Mesh::shard(world));
    expect_same_weights(*model, *make_block_model(), 0);
  });
  run_ranks(2, [](const World& world) {
    const auto seed = kModelSeed + static_cast<uint64_t>(world.rank);
    const auto model = make_seeded(seed, [] { return std::make_shared<BlockModel>(3); });
    fully_shard(*model, Mesh::shard(world), {.initial_weights = InitialWeights::kBroadcast});
    expect_same_weights(*model, *make_block_model(), 0);
    expect_trains_as_unsharded(world, *model);
  });
}

torch::Tensor wide_loss(BlockModel& model, const torch::Tensor& rows) {
  return model.forward(rows).to(torch::kFloat).square().mean();
}

TEST(MigrationMegatron, InitialisationAndPrecisionOfGradients) {
  using Dtype = std::optional<at::ScalarType>;
  const struct {
    Dtype grad_comm, main_grads, grad_accum;
    double tolerance;  // what the narrowest of them rounds
  } cases[] = {{at::kFloat, {}, {}, 1e-5},
               {{}, {}, {}, 1e-5},
               {at::kBFloat16, {}, {}, 0.01},
               {at::kHalf, {}, {}, 0.002},
               {at::kFloat, at::kBFloat16, {}, 0.01},
               {at::kFloat, at::kHalf, {}, 0.002},
               {at::kFloat, {}, at::kBFloat16, 0.01}};
  for (const auto& c : cases) {
    run_ranks(2, [&](const World& world) {
      const Precision policy{
          .param = at::kBFloat16, .reduce = c.grad_comm, .accumulate = c.grad_accum, .main_grad = c.main_grads};
      ShardedBlocks sharded = shard_blocks(world, {.strategy = Strategy::kOptim, .precision = policy});
      parameters(*sharded.module);
      RoundedTwin twin(torch::kBFloat16, world.size);
      for (const uint64_t seed : {1, 2}) {
        const Microbatch scope(sharded.root, seed == 2);
        const torch::Tensor rows = batch(seed).to(torch::kBFloat16);
        wide_loss(*sharded.module, share_of(world, rows)).backward();
        twin.add_gradients(rows, wide_loss);
      }
      for (const torch::Tensor& leaf : parameters(*sharded.module)) {
        EXPECT_EQ(leaf.grad().scalar_type(), c.main_grads.value_or(at::kFloat));
      }
      expect_same_gradients(*sharded.module, twin.master(), c.tolerance);
    });
  }
}

TEST(MigrationMegatron, InitialisationAndPrecisionOfMainWeights) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for_worlds([&](const World& world) {
      const auto model = make_block_model(), twin = make_block_model();
      model->to(dtype);
      twin->to(dtype);
      fully_shard(*model, Mesh::shard(world));
      torch::optim::SGD optimizer(parameters(*model), kRate), theirs(twin->parameters(), kRate);
      for (const uint64_t seed : {1, 2}) {
        wide_loss(*model, share_of(world, batch(seed).to(dtype))).backward();
        wide_loss(*twin, batch(seed).to(dtype)).backward();
        optimizer.step();
        theirs.step();
        zero_grad(*model);
        theirs.zero_grad();
      }
      for (const torch::Tensor& leaf : parameters(*model)) EXPECT_EQ(leaf.scalar_type(), dtype);
      expect_same_weights(*model, *twin, 0.01);
    });
  }
}

// Bytes of state for each element of this rank's main weights.
double state_bytes(const World& world, const AdamWOptions& options, std::optional<at::ScalarType> main_grad = {}) {
  ShardedBlocks sharded = shard_blocks(world, {.precision = {.param = at::kBFloat16, .main_grad = main_grad}});
  AdamW optimizer(parameters(*sharded.module), options);
  for (const uint64_t seed : {1, 2}) {
    const torch::Tensor rows = batch(seed).to(torch::kBFloat16);
    wide_loss(*sharded.module, share_of(world, rows)).backward();
    optimizer.step();
    zero_grad(*sharded.module);
  }
  EXPECT_EQ(parameters(*sharded.module).front().scalar_type(), at::kFloat);
  return static_cast<double>(optimizer.state_bytes()) /
         static_cast<double>(sharded.root.resting_bytes().main_weight / 4);
}

TEST(MigrationMegatron, InitialisationAndPrecisionOfOptimizers) {
  run_ranks(2, [](const World& world) {
    EXPECT_EQ(state_bytes(world, {.lr = 0.01}), 8);
    EXPECT_EQ(state_bytes(world, {.lr = 0.01, .exp_avg_dtype = at::kBFloat16, .exp_avg_sq_dtype = at::kBFloat16},
                          at::kBFloat16),
              4);
    EXPECT_EQ(state_bytes(world, {.lr = 0.01, .exp_avg_dtype = at::kHalf}, at::kHalf), 6);
  });
  run_ranks(2, [](const World& world) {
    const auto make = [] { return nn::Sequential(nn::Linear(5, 16), nn::Linear(16, 16), nn::Linear(16, 3)); };
    auto model = make_seeded(kModelSeed, make), twin = make_seeded(kModelSeed, make);
    for (auto& each : {model, twin}) EXPECT_THAT(fp8(*each.ptr(), Fp8Recipe::kRowwise), ElementsAre("1"));
    fully_shard(*model, Mesh::shard(world));
    parameters(*model);
    for (int rank = 0; rank < world.size; ++rank) {
      const torch::Tensor rows = batch(1).narrow(0, rank * 6, 6);
      (twin->forward(rows).square().mean() / world.size).backward();
      if (rank == world.rank) model->forward(rows).square().mean().backward();
    }
    expect_same_gradients(*model, *twin, 1e-6);
  });
}

// ---- gradients

TEST(MigrationMegatron, GradientsScaling) {
  for_worlds([](const World& world) {
    const auto expect_factor = [&](const GradScale& scale, double factor) {
      ShardedBlocks sharded = shard_blocks(world);
      parameters(*sharded.module);
      sharded.root.set_gradient_scale(scale);
      sharded.blocks[1].set_gradient_divide_factor(world.size * 2.0);
      share_loss(world, *sharded.module, 1).backward();
      Twin twin;
      twin.backward(1, factor);
      for (torch::Tensor& weight : twin.model->block(1).parameters()) weight.grad().div_(2 * factor);
      expect_same_gradients(*sharded.module, *twin.model);
    };
    expect_factor(GradScale::mean(), 1);
    expect_factor(GradScale::sum(), world.size);
    expect_factor(GradScale::per_token(7), 1 / 7.0);
  });
}

TEST(MigrationMegatron, GradientsAccumulation) {
  run_ranks(4, [](const World& world) {
    for (const auto timing : {ReduceTiming::kLastMicrobatch, ReduceTiming::kEveryMicrobatch}) {
      const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
      ShardedBlocks sharded = shard_blocks(mesh, {.strategy = Strategy::kHybrid, .replica_reduce = timing});
      parameters(*sharded.module);
      Twin twin;
      for (const uint64_t seed : {1, 2, 3}) {
        const Microbatch scope(sharded.root, seed == 3);
        std::optional<NoSync> quiet;
        if (seed == 2) quiet.emplace(sharded.root);
        share_loss(world, *sharded.module, seed).backward();
        twin.backward(seed);
      }
      expect_same_gradients(*sharded.module, *twin.model);
    }
  });
}

struct Kinds : nn::Module {
  Kinds() {
    embedding = register_parameter("embedding", torch::randn({5, 8}));
    frozen = register_parameter("frozen", torch::randn({8, 8}), /*requires_grad=*/false);
    fused = register_parameter("fused", torch::randn({8, 8}));
    missing = register_parameter("missing", torch::randn({8}));
    missing_here = register_parameter("missing_here", torch::randn({8}));
  }
  torch::Tensor loss(const torch::Tensor& x, bool uses) {
    const torch::Tensor y = kernels::linear(torch::tanh(x.matmul(embedding).matmul(frozen)), fused);
    return (uses ? y + missing_here : y).matmul(embedding.t()).square().mean();
  }
  torch::Tensor embedding, frozen, fused, missing, missing_here;
};

TEST(MigrationMegatron, GradientsKindsOfParameters) {
  run_ranks(2, [](const World& world) {
    const auto make = [] { return std::make_shared<Kinds>(); };
    const auto model = make_seeded(kModelSeed, make), twin = make_seeded(kModelSeed, make);
    Unit root = fully_shard(*model, Mesh::shard(world));
    SGD optimizer(parameters(*model), {.lr = kRate});
    root.reset_counters();
    model->loss(share_of(world, batch(1)), world.rank == 0).backward();
    for (const int rank : {0, 1}) (twin->loss(batch(1).narrow(0, 6 * rank, 6), rank == 0) / 2).backward();
    EXPECT_EQ(root.counters().gradients_in_place, 1);
    expect_same_gradients(*model, *twin);
  });
}

// ---- communication and memory

TEST(MigrationMegatron, CommunicationAndMemory) {
  const int64_t root_bytes = root_shard_numel(2) * 2 * 4, block_bytes = block_shard_numel(2) * 2 * 4;
  Schedule unified = Schedule::static_order();
  unified.threads = schedule::CommThreads::kUnified;
  const struct {
    Schedule schedule;
    AllocatorOptions allocator;
    int64_t blocks_at_once;
  } cases[] = {{Schedule::static_order(), AllocatorOptions::direct(), 2},
               {Schedule::on_demand(), AllocatorOptions::storage_resize(), 1},
               {Schedule::static_order(3), AllocatorOptions::rotary(2), 3},
               {Schedule::static_order(3, block_bytes), AllocatorOptions::fixed_pool(1 << 18), 2},
               {Schedule::delayed_release(1), AllocatorOptions::traced(), 2},
               {unified, AllocatorOptions::traced(), 2}};
  for (const auto& c : cases) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(c10::str(schedule::describe(c.schedule), ", allocator ", static_cast<int>(c.allocator.kind)));
      ShardedBlocks sharded = shard_blocks(world, {.schedule = c.schedule, .allocator = c.allocator});
      expect_trains_as_unsharded(world, *sharded.module);
      const Counters counters = counters_of_a_step(world, *sharded.module, sharded.root);
      if (one_copy_of_weights()) return;
      EXPECT_EQ(counters.peak_unsharded_bytes, root_bytes + c.blocks_at_once * block_bytes);
    });
  }
}

TEST(MigrationMegatron, CommunicationAndMemoryOfActivations) {
  for_worlds([](const World& world) {
    Twin twin;  // before parameters(), where ranks meet: recompute sets the generator that seeds it
    ShardedBlocks sharded = shard_blocks(world, {.main_weights = MainWeights::kOnHost});
    parameters(*sharded.module);
    std::vector<GraphedFunction> graphs;
    const auto loss = [&](BlockModel& model, const torch::Tensor& rows) {
      torch::Tensor x = recompute([&](const torch::Tensor& y) { return model.block(0).forward(y); }, model.inlet(rows));
      BlockImpl& second = model.block(1);
      x = x + recompute_input([&](const auto& inputs) { return torch::tanh(second.up(inputs[0])); }, {x},
                              [&](const torch::Tensor& made) { return std::vector{second.down(made)}; })[0];
      BlockImpl& third = model.block(2);
      graphs.emplace_back(third.parameters());
      x = graphs.back()([&](const auto& inputs) { return std::vector{third.forward(inputs[0])}; }, {x})[0];
      return model.outlet(x).square().mean();
    };
    loss(*sharded.module, share_of(world, batch(1))).backward();
    twin.backward(1);
    expect_same_gradients(*sharded.module, *twin.model);
    loss(*twin.model, batch(1)).backward();
    share_loss(world, *sharded.module, 1).backward();
    expect_same_gradients(*sharded.module, *twin.model);
  });
}

// ---- methods

TEST(MigrationMegatron, MethodsOfFullyShardedDataParallelAndMegatronFsdp) {
  const io::TemporaryFolder folder;
  for_worlds([&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    Twin twin;
    for (Unit& block : sharded.blocks) block.unshard();
    for (Unit& block : sharded.blocks) block.reshard();
    SGD optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum});
    share_loss(world, *sharded.module, 1).backward();
    twin.backward(1, 0.5);
    for (const torch::Tensor& leaf : parameters(*sharded.module)) leaf.grad().mul_(0.5);
    expect_same_gradients(*sharded.module, *twin.model);
    optimizer.step();
    twin.step();
    zero_grad(*sharded.module);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& leaf : parameters(*sharded.module)) leaf.mul_(2);
      for (torch::Tensor& weight : twin.model->parameters()) weight.mul_(2);
    }
    const torch::Tensor y = sharded.module->forward(batch(2)), expected = twin.model->forward(batch(2));
    EXPECT_TRUE(torch::allclose(y, expected, 1e-4, 1e-5));
    y.sum().backward();
    zero_grad(*sharded.module);
    checkpoint::save(folder / "step-1", {.model = *sharded.module});
    ShardedBlocks loaded = shard_blocks(world, {.strategy = Strategy::kOptim});
    checkpoint::load(folder / "step-1", {.model = *loaded.module});
    expect_same_weights(*loaded.module, *twin.model);
  });
  run_ranks(2, [](const World& world) {
    const at::Generator mine = generator(100 + static_cast<uint64_t>(world.rank));
    const Mesh mesh = Mesh::parallel(world, {{"tp", 2}});
    parallel::share_random_state(mine, parallel::Ranks::along(mesh, "tp"));
    EXPECT_TRUE(torch::equal(torch::rand({4}, mine), torch::rand({4}, generator(100))));
  });
}

// ---- optimizer and checkpoints

TEST(MigrationMegatron, OptimizerAndCheckpoints) {
  const io::TemporaryFolder folder;
  for_worlds([&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    AdamW optimizer(parameters(*sharded.module), {.lr = 0.01});
    const auto twin = make_block_model();
    torch::optim::AdamW theirs(twin->parameters(), torch::optim::AdamWOptions(0.01));
    for (const uint64_t seed : {1, 2, 3}) {
      share_loss(world, *sharded.module, seed).backward();
      twin->zero_grad();
      loss_of(*twin, batch(seed)).backward();
      EXPECT_NEAR(clip_grad_norm_(*sharded.module, 0.2).item<double>(),
                  torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.2), 1e-5);
      optimizer.step();
      theirs.step();
      zero_grad(*sharded.module);
    }
    expect_same_weights(*sharded.module, *twin, 1e-4);
    checkpoint::Saver saver(world, folder.path());
    saver.start(3, {.model = *sharded.module, .optimizer = optimizer});
    EXPECT_EQ(saver.finish().step, 3);

    StateDict fused = full_state_dict(*sharded.module);
    const auto halves = at::chunk(fused.tensors.at("inlet.weight"), 2);
    fused.tensors.at("inlet.weight") = at::cat({halves[1], halves[0]});
    load_full_state_dict(*sharded.module, fused);
    const auto swapped = at::chunk(full_state_dict(*sharded.module).tensors.at("inlet.weight"), 2);
    EXPECT_TRUE(torch::equal(swapped[0], halves[1]) && torch::equal(swapped[1], halves[0]));

    const Mesh mesh(world, {{"replicate", world.size}, {"shard", 1}});
    ShardedBlocks resumed = shard_blocks(mesh, {.strategy = Strategy::kHybridOptim});
    AdamW its_optimizer(parameters(*resumed.module), {.lr = 0.01});
    EXPECT_EQ(checkpoint::resume(folder.path(), {.model = *resumed.module, .optimizer = its_optimizer})->step, 3);
    share_loss(world, *resumed.module, 9).backward();
    its_optimizer.step();
    twin->zero_grad();
    loss_of(*twin, batch(9)).backward();
    theirs.step();
    expect_same_weights(*resumed.module, *twin, 1e-4);
  });
}

// ---- experimental path

TEST(MigrationMegatron, ExperimentalPath) {
  constexpr PlacementTriple kReplicas{Placement::kReplicate, Placement::kPartial, Placement::kReplicate};
  constexpr PlacementTriple kFlat{Placement::kShard, Placement::kShard, Placement::kShard};
  ShardOptions options{.strategy = strategy_of({.replicate = kReplicas, .shard = kFlat})};
  EXPECT_EQ(options.strategy, Strategy::kOptimGradsParams);
  options.schedule = Schedule::delayed_release(1);
  options.schedule.release = schedule::ReleaseOrder::kReshardFirst;
  options.schedule.threads = schedule::CommThreads::kUnified;
  for_worlds([&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, options);
    sharded.root.set_gradient_divide_factor(world.size * 2.0);
    Twin twin;
    SGD optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum});
    profile::Session session;
    for (const uint64_t seed : {1, 2, 3, 4}) {
      const Microbatch scope(sharded.root, seed % 2 == 0);
      share_loss(world, *sharded.module, seed).backward();
      twin.backward(seed, 0.5);
      if (seed % 2 == 1) continue;
      optimizer.step();
      zero_grad(*sharded.module);
      twin.step();
    }
    session.stop();
    expect_same_weights(*sharded.module, *twin.model);
    EXPECT_THAT(session.summary(), HasSubstr("layers.1"));
    EXPECT_THAT(sharded.root.describe(), AllOf(HasSubstr("root"), HasSubstr("layers.2")));
  });
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, {.schedule = Schedule::static_order(1, block_shard_numel(2) * 2 * 4)});
    sharded.blocks[0].prefetch_in_forward({sharded.blocks[1], sharded.blocks[2]});
    sharded.blocks[2].prefetch_in_backward({sharded.blocks[1], sharded.blocks[0]});
    expect_trains_as_unsharded(world, *sharded.module);
  });
}

TEST(MigrationMegatron, Environment) {
  expect_init_joins();
  expect_init_joins({{"CUDA_DEVICE_MAX_CONNECTIONS", "8"},
                     {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"},
                     {"FSDP_TRANSPORT", "gloo"}});
}

}  // namespace
}  // namespace fsdp::migration_megatron_test
