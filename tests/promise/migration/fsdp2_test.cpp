// PyTorch FSDP2, family by family of docs/migration.md: what its documentation shows, written in our names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/migration/launched_ranks.h"
#include "tests/promise/migration/twin.h"
#include "tests/promise/models/rounded_twin.h"
#include "tests/support/worlds.h"

namespace fsdp::migration_fsdp2_test {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- arguments of fully_shard

void expect_gathers_of(const Mesh& mesh, const ShardOptions& options, int64_t gathers) {
  ShardedBlocks sharded = shard_blocks(mesh, options);
  expect_trains_as_unsharded(mesh.world(), *sharded.module);
  expect_gathers(counters_of_a_step(mesh.world(), *sharded.module, sharded.root), gathers);
}

TEST(MigrationFsdp2, ArgumentsOfFullyShardReshardAfterForward) {
  run_ranks(4, [](const World& world) {
    const Mesh flat = Mesh::shard(world);
    expect_gathers_of(flat, {}, 6);
    expect_gathers_of(flat, {.reshard_after_forward = true}, 6);
    expect_gathers_of(flat, {.reshard_after_forward = false}, 4);
    expect_gathers_of(flat, {.strategy = Strategy::kOptimGrads}, 4);
    expect_gathers_of(flat, {.reshard_after_forward = 2}, 6);
    const Mesh hsdp(world, {{"replicate", 2}, {"shard", 2}});
    expect_gathers_of(hsdp, {.strategy = Strategy::kHybrid}, 6);
    expect_gathers_of(hsdp, {}, 6);
    expect_gathers_of(hsdp, {.strategy = Strategy::kHybridZero2}, 4);
    const Mesh cube(world, {{"a", 2}, {"b", 1}, {"c", 2}});
    expect_gathers_of(cube.flattened({"b", "c"}, "shard").flattened({"a"}, "replicate"), {}, 6);
    expect_gathers_of(flat, {.strategy = Strategy::kNoShard}, 0);
  });
}

TEST(MigrationFsdp2, ArgumentsOfFullyShardModules) {
  for_worlds([](const World& world) {
    const auto model = make_block_model();
    fully_shard({&model->block(0), &model->block(1)}, Mesh::shard(world));
    fully_shard(*model->block(2).up, Mesh::shard(world));
    fully_shard(*model->layers, Mesh::shard(world));
    const Unit root = fully_shard(*model, Mesh::shard(world));
    EXPECT_EQ(root.num_units(), 4);
    EXPECT_EQ(root.num_parameters(), 3 * (6 * 18 + 18 + 18 * 6 + 6) + (5 * 6 + 6) + (6 * 3 + 3));
    expect_trains_as_unsharded(world, *model);
  });
  run_ranks(1, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    EXPECT_EQ(counters_of_a_step(world, *sharded.module, sharded.root).gathers, 0);
    EXPECT_EQ(sharded.root.resting_bytes().model_weight, 0);
    const auto model = deferred([] { return std::make_shared<BlockModel>(1); });
    EXPECT_TRUE(is_deferred(model->block(0).up->weight));
    fully_shard(model->block(0), Mesh::shard(world));
    EXPECT_FALSE(is_deferred(model->block(0).up->weight));
    EXPECT_TRUE(is_deferred(model->inlet->weight));
    fully_shard(*model, Mesh::shard(world));
  });
}

TEST(MigrationFsdp2, ArgumentsOfFullyShardPlacement) {
  const auto is_bias = [](const std::string& name) { return name.ends_with("bias"); };
  run_ranks(4, [&](const World& world) {
    ShardedBlocks rows = shard_blocks(world, {.layout = {.granularity = layout::Granularity::kRow}});
    ShardedBlocks blocks = shard_blocks(world, {.layout = {.granularity = layout::Granularity::kBlock, .block = 16}});
    ShardedBlocks whole = shard_blocks(world, {.layout = {.granularity = layout::Granularity::kTensor}});
    for (const auto& [sharded, granule] : {std::pair(&rows, 0), std::pair(&blocks, 16), std::pair(&whole, -1)}) {
      for (const auto& [name, leaf] : named_parameters(*sharded->module)) {
        const auto sizes = logical_sizes(leaf);
        const int64_t numel = c10::multiply_integers(sizes);
        const int64_t unit = granule == 0 ? numel / sizes[0] : granule < 0 ? numel : granule;
        const LocalRange range = local_range(leaf);
        EXPECT_EQ(range.begin % unit, 0) << name;
        EXPECT_TRUE(range.end % unit == 0 || range.end == numel) << name;
      }
      expect_trains_as_unsharded(world, *sharded->module);
    }
    ShardedBlocks replicated = shard_blocks(world, {.replicate = is_bias});
    const Mesh pairs(world, {{"replicate", 2}, {"shard", 2}});
    ShardedBlocks two_meshes = shard_blocks(pairs, {.mesh_of = [&](const std::string& name) {
                                              return is_bias(name) ? std::optional<Mesh>() : Mesh::shard(world);
                                            }});
    for (const auto& [sharded, copies] : {std::pair(&replicated, 4), std::pair(&two_meshes, 2)}) {
      for (const auto& [name, leaf] : named_parameters(*sharded->module)) {
        const auto held = sum_over_ranks(world, torch::full({1}, leaf.numel(), torch::kLong)).item<int64_t>();
        EXPECT_EQ(held, (is_bias(name) ? copies : 1) * c10::multiply_integers(logical_sizes(leaf))) << name;
      }
      expect_trains_as_unsharded(world, *sharded->module);
    }
  });
}

// A scale and a weight in another order of memory, an embedding that the head shares, a counter, running statistics.
struct Kinds : nn::Module {
  Kinds() {
    embed = register_module("embed", nn::Embedding(8, 6));
    norm = register_module("norm", nn::BatchNorm1d(6));
    head = register_parameter("head", embed->weight);
    scale = register_parameter("scale", torch::tensor(0.5));
    mix = register_parameter("mix", torch::linspace(-0.5, 0.5, 36).view({6, 6}).t());
    count = register_parameter("count", torch::tensor({3}), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& ids) { return norm(embed(ids).matmul(mix)).matmul(head.t()) * scale; }
  nn::Embedding embed{nullptr};
  nn::BatchNorm1d norm{nullptr};
  torch::Tensor head, scale, mix, count;
};

TEST(MigrationFsdp2, ArgumentsOfFullyShardKindsOfParameters) {
  for_worlds([](const World& world) {
    const auto make = [] { return std::make_shared<Kinds>(); };
    const auto model = make_seeded(kModelSeed, make), twin = make_seeded(kModelSeed, make);
    EXPECT_THAT(error_of([&] { fully_shard(*model, Mesh::shard(world)); }), HasSubstr("count"));
    ShardOptions options{.ignored_parameters = {model->count}, .buffers = BufferSync::kMean};
    fully_shard(*model->embed, Mesh::shard(world), options);
    options.ignored_parameters.push_back(model->scale);
    options.ignored_gradients = IgnoredGradients::kMean;
    fully_shard(*model, Mesh::shard(world), options);
    parameters(*model);
    torch::Tensor mean = torch::zeros({6});
    for (int rank = 0; rank < world.size; ++rank) {
      const torch::Tensor ids = (torch::arange(6) * (rank + 1)).remainder(8);
      const auto statistics = twin->norm->running_mean.clone(), variances = twin->norm->running_var.clone();
      twin->norm->running_mean.zero_();
      twin->norm->running_var.fill_(1);
      (twin->forward(ids).square().mean() / world.size).backward();
      mean += twin->norm->running_mean / world.size;
      if (rank == world.rank) model->forward(ids).square().mean().backward();
    }
    expect_same_gradients(*model, *twin);
    EXPECT_TRUE(torch::allclose(model->norm->running_mean, mean, 1e-5, 1e-6));
    EXPECT_EQ(model->count.item<int64_t>(), 3);
  });
}

// ---- policies

TEST(MigrationFsdp2, MixedPrecisionPolicy) {
  for_worlds([](const World& world) {
    const auto loss = [](const torch::Tensor& y) { return y.to(torch::kFloat).square().mean(); };
    const auto rounded_loss = [&](BlockModel& model, const torch::Tensor& rows) { return loss(model.forward(rows)); };
    Precision policy = Precision::bf16();
    policy.output = at::kFloat;
    for (const bool casts : {true, false}) {
      policy.cast_inputs = casts;
      ShardedBlocks sharded = shard_blocks(world, {.precision = policy});
      parameters(*sharded.module);
      RoundedTwin twin(torch::kBFloat16, world.size);
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        const torch::Tensor rows = batch(seed);
        const torch::Tensor mine = share_of(world, casts ? rows : rows.to(torch::kBFloat16));
        const torch::Tensor y = forward(*sharded.module, mine);
        EXPECT_EQ(y.scalar_type(), at::kFloat);
        sharded.root.set_requires_gradient_sync(seed == 2);
        loss(y).backward();
        twin.add_gradients(rows.to(torch::kBFloat16), rounded_loss);
      }
      expect_same_gradients(*sharded.module, twin.master());
      for (const torch::Tensor& leaf : parameters(*sharded.module)) EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
    }
  });
  run_ranks(2, [](const World& world) {
    const Precision narrow{.param = at::kBFloat16, .reduce = at::kBFloat16, .main_grad = at::kBFloat16};
    ShardedBlocks sharded = shard_blocks(world, {.precision = narrow});
    AdamW optimizer(parameters(*sharded.module), {.lr = 0.01});
    forward(*sharded.module, share_of(world, batch(1))).square().mean().backward();
    for (const torch::Tensor& leaf : parameters(*sharded.module)) {
      EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
      EXPECT_EQ(leaf.scalar_type(), at::kFloat);
    }
    optimizer.step();
  });
}

TEST(MigrationFsdp2, OffloadPolicy) {
  for (const MainWeights policy : {MainWeights::kOnDevice, MainWeights::kOnHost}) {
    for_worlds([&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world, {.main_weights = policy});
      expect_trains_as_unsharded(world, *sharded.module);
      EXPECT_TRUE(parameters(*sharded.module).front().is_cpu());
    });
  }
}

// ---- methods

TEST(MigrationFsdp2, FsdpModuleMethodsOfWeights) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    Unit block = sharded.blocks[1];
    block.unshard();
    EXPECT_TRUE(torch::equal(sharded.module->block(1).up->weight, twin->block(1).up->weight));
    block.reshard();
    UnshardHandle handle = block.unshard_async();
    handle.wait();
    EXPECT_TRUE(torch::equal(sharded.module->block(1).down->bias, twin->block(1).down->bias));
    block.reshard();
    EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
    expect_trains_as_unsharded(world, *sharded.module);
  });
}

TEST(MigrationFsdp2, FsdpModuleMethodsOfSchedules) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    Unit& root = sharded.root;
    std::vector<Unit>& blocks = sharded.blocks;
    const auto gathers = [&] { return counters_of_a_step(world, *sharded.module, root); };
    expect_gathers(gathers(), 6);
    root.set_reshard_after_forward(false);
    expect_gathers(gathers(), 4);
    root.set_reshard_after_forward(true);
    blocks[0].set_reshard_after_forward(false);
    expect_gathers(gathers(), 5);
    root.set_reshard_after_forward(2);
    expect_gathers(gathers(), 6);
    root.prefetch_in_forward({blocks[0], blocks[1]});
    blocks[2].prefetch_in_backward({blocks[1], blocks[0]});
    expect_gathers(gathers(), 6);
    root.set_reshard_after_backward(false);
    SGD optimizer(parameters(*sharded.module), {.lr = 0});
    root.reset_counters();
    for (const bool is_last : {false, true}) {
      const Microbatch scope(root, is_last);
      share_loss(world, *sharded.module, 1).backward();
    }
    EXPECT_EQ(root.counters().resident_unsharded_bytes > 0, !one_copy_of_weights());
  });
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    sharded.root.prefetch_in_forward({sharded.blocks[0], sharded.blocks[1]});
    sharded.blocks[2].prefetch_in_backward({sharded.blocks[1], sharded.blocks[0]});
    expect_trains_as_unsharded(world, *sharded.module);
  });
}

// Of a sharded model after two backwards, against the twin's sum of both.
void expect_sum_of_two(const World& world, const std::function<void(ShardedBlocks&, bool is_last)>& before_backward) {
  const Mesh mesh(world, {{"replicate", 2}, {"shard", world.size / 2}});
  ShardedBlocks sharded = shard_blocks(mesh, {.strategy = Strategy::kHybrid});
  parameters(*sharded.module);
  Twin twin;
  for (const uint64_t seed : {1, 2}) {
    before_backward(sharded, seed == 2);
    share_loss(world, *sharded.module, seed).backward();
    twin.backward(seed);
  }
  expect_same_gradients(*sharded.module, *twin.model);
}

TEST(MigrationFsdp2, FsdpModuleMethodsOfGradients) {
  run_ranks(4, [](const World& world) {
    expect_sum_of_two(world, [](ShardedBlocks& model, bool last) { model.root.set_requires_gradient_sync(last); });
    expect_sum_of_two(world, [](ShardedBlocks& model, bool last) { model.root.set_requires_all_reduce(last); });
    expect_sum_of_two(world, [](ShardedBlocks& model, bool last) {
      model.root.set_requires_gradient_sync(last);
      for (Unit& block : model.blocks) block.set_requires_gradient_sync(true);  // recurse=False
    });
  });
  for_worlds([](const World& world) {
    const auto loss = [&](BlockModel& model) { return share_loss(world, model, 1); };
    const auto expect_factor = [&](const std::function<void(Unit&)>& set, double factor) {
      ShardedBlocks sharded = shard_blocks(world);
      parameters(*sharded.module);
      set(sharded.root);
      loss(*sharded.module).backward();
      Twin twin;
      twin.backward(1, factor);
      expect_same_gradients(*sharded.module, *twin.model);
    };
    const int ranks = world.size;
    expect_factor([](Unit& root) { root.set_gradient_scale(GradScale::mean()); }, 1);
    expect_factor([](Unit& root) { root.set_gradient_scale(GradScale::sum()); }, ranks);
    expect_factor([](Unit& root) { root.set_gradient_divide_factor(4); }, ranks / 4.0);
    expect_factor([](Unit& root) { root.set_gradient_scale(GradScale::per_token(5)); }, 1 / 5.0);
    expect_factor([](Unit& root) { root.set_all_reduce_hook([](const at::Tensor& sum) { sum.neg_(); }); }, -1);
  });
}

// One branch of its two is used, by each rank another.
struct Branches : nn::Module {
  Branches() {
    left = register_module("left", nn::Linear(5, 3));
    right = register_module("right", nn::Linear(5, 3));
    never = register_module("never", nn::Linear(5, 3));
  }
  nn::Linear left{nullptr}, right{nullptr}, never{nullptr};
};

TEST(MigrationFsdp2, FsdpModuleMethodsOfUnusedParameters) {
  run_ranks(2, [](const World& world) {
    const auto make = [] { return std::make_shared<Branches>(); };
    const auto model = make_seeded(kModelSeed, make), twin = make_seeded(kModelSeed, make);
    const Unit root = fully_shard(*model, Mesh::shard(world));
    parameters(*model);
    const torch::Tensor rows = batch(1);
    (world.rank == 0 ? model->left : model->right)(rows).square().mean().backward();
    ((twin->left(rows).square().mean() + twin->right(rows).square().mean()) / 2).backward();
    expect_same_gradients(*model, *twin);  // none of `never`
    EXPECT_THAT(root.describe(), HasSubstr("root"));
    const auto stop = [&] {
      model->left(rows);
      throw Error(ErrorCode::kData, "a rank's data");
    };
    EXPECT_NE(error_of(stop), "no error");
    zero_grad(*model);
    twin->zero_grad();
    model->left(share_of(world, rows)).square().mean().backward();
    twin->left(rows).square().mean().backward();
    expect_same_gradients(*model, *twin);
  });
}

// ---- functions, optimizer, state, composition

TEST(MigrationFsdp2, FunctionsOptimizerStateCompositionOptimizers) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    Twin twin;
    torch::optim::SGD optimizer(parameters(*sharded.module), torch::optim::SGDOptions(kRate).momentum(kMomentum));
    for (const uint64_t seed : {1, 2, 3}) {
      share_loss(world, *sharded.module, seed).backward();
      twin.backward(seed);
      const double norm = clip_grad_norm_(parameters(*sharded.module), 0.2).item<double>();
      EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(twin.model->parameters(), 0.2), 1e-5);
      optimizer.step();
      optimizer.zero_grad(/*set_to_none=*/seed != 1);
      twin.step();
    }
    expect_same_weights(*sharded.module, *twin.model);
  });
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    Twin twin;
    SGD optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum});
    optimizer.step_in_backward();
    for (const uint64_t seed : {1, 2, 3}) {
      share_loss(world, *sharded.module, seed).backward();
      optimizer.step();
      twin.backward(seed);
      twin.step();
    }
    expect_same_weights(*sharded.module, *twin.model);
  });
}

TEST(MigrationFsdp2, FunctionsOptimizerStateCompositionDecay) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    AdamW optimizer(decay_groups(*sharded.module, 0.1), {.lr = 0.01});
    std::vector<torch::Tensor> matrices, vectors;
    for (const torch::Tensor& weight : twin->parameters()) (weight.dim() > 1 ? matrices : vectors).push_back(weight);
    torch::optim::AdamW decayed(matrices, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    torch::optim::AdamW others(vectors, torch::optim::AdamWOptions(0.01).weight_decay(0));
    for (const uint64_t seed : {1, 2}) {
      share_loss(world, *sharded.module, seed).backward();
      optimizer.step();
      zero_grad(*sharded.module);
      twin->zero_grad();
      loss_of(*twin, batch(seed)).backward();
      decayed.step();
      others.step();
    }
    expect_same_weights(*sharded.module, *twin, 1e-4);
  });
}

// Every rank ends where one rank alone does.
void expect_same_on_any_world(const std::function<void(const World&, BlockModel&)>& program,
                              const ShardOptions& options = {}) {
  std::optional<StateDict> alone;
  run_ranks(1, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, options);
    program(world, *sharded.module);
    alone = full_state_dict(*sharded.module);
  });
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, options);
    program(world, *sharded.module);
    const StateDict weights = full_state_dict(*sharded.module);
    for (const auto& [name, tensor] : weights.tensors) {
      EXPECT_TRUE(torch::allclose(tensor, alone->tensors.at(name), 1e-3, 1e-4)) << name;
      EXPECT_FALSE(torch::equal(tensor, make_block_model()->named_parameters()[name])) << name;
    }
  });
}

TEST(MigrationFsdp2, FunctionsOptimizerStateCompositionOtherOptimizers) {
  const LayoutOptions whole{.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
  const LayoutOptions blocks{.granularity = layout::Granularity::kBlock, .block = kCodeBlock};
  expect_same_on_any_world(
      [](const World& world, BlockModel& model) {
        Muon optimizer(muon_groups(model, 0.1), {.lr = 0.01, .dtype = at::kFloat}, {.lr = 0.01});
        train(world, model, optimizer);
      },
      {.layout = whole});
  expect_same_on_any_world(
      [](const World& world, BlockModel& model) {
        LowBitAdamW optimizer(parameters(model), {.lr = 0.01});
        train(world, model, optimizer);
      },
      {.layout = blocks});
  expect_same_on_any_world([](const World& world, BlockModel& model) {
    ScheduleFreeAdamW optimizer(parameters(model), {.lr = 0.01});
    train(world, model, optimizer);
    optimizer.use_average();
  });
}

TEST(MigrationFsdp2, FunctionsOptimizerStateCompositionState) {
  const io::TemporaryFolder folder;
  Twin twin;
  train(twin);
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    SGD optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum});
    train(world, *sharded.module, optimizer);
    checkpoint::Saver saver(world, folder.path());
    saver.start(3, {.model = *sharded.module, .optimizer = optimizer});
    saver.finish();
    save(*sharded.module, (folder / "m.pt").string());
    FullParameters scope(sharded.root);
    EXPECT_TRUE(torch::allclose(sharded.module->inlet->weight, twin.model->inlet->weight, 1e-5, 1e-6));
  });
  run_ranks(3, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    torch::optim::SGD optimizer(parameters(*sharded.module), torch::optim::SGDOptions(kRate).momentum(kMomentum));
    checkpoint::load(folder / "step-3", {.model = *sharded.module, .optimizer = optimizer});
    expect_same_weights(*sharded.module, *twin.model);
    ShardedBlocks weights_only = shard_blocks(world);
    load(*weights_only.module, (folder / "m.pt").string());
    expect_same_weights(*weights_only.module, *twin.model);
    Twin next;
    train(next);
    share_loss(world, *sharded.module, 9).backward();
    optimizer.step();
    next.backward(9);
    next.step();
    expect_same_weights(*sharded.module, *next.model);
  });
}

TEST(MigrationFsdp2, FunctionsOptimizerStateCompositionFlow) {
  for_worlds([](const World& world) {
    schedule::Schedule streams = schedule::Schedule::static_order();
    streams.threads = schedule::CommThreads::kUnified;
    streams.release = schedule::ReleaseOrder::kReshardFirst;
    ShardedBlocks sharded = shard_blocks(world, {.schedule = streams});
    ShardedBlocks generator = shard_blocks(world, {.schedule = streams});
    Twin twin, other;
    parameters(*sharded.module);
    parameters(*generator.module);
    const auto loss = [](BlockModel& model, BlockModel& critic, const torch::Tensor& rows) {
      const auto block = [&](const torch::Tensor& x) { return model.block(0).forward(x); };
      const torch::Tensor hidden = recompute_every(1, {block, block}, model.inlet(rows));
      return model.outlet(hidden).square().mean() + critic.forward(rows).square().mean();
    };
    loss(*sharded.module, *generator.module, share_of(world, batch(1))).backward();
    loss(*twin.model, *other.model, batch(1)).backward();
    expect_same_gradients(*sharded.module, *twin.model);
    expect_same_gradients(*generator.module, *other.model);
    {
      const ForwardOnly scope(sharded.root);
      EXPECT_FALSE(sharded.module->forward(batch(2)).requires_grad());
    }
    EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::allclose(sharded.module->forward(batch(2)), twin.model->forward(batch(2)), 1e-5, 1e-6));
  });
}

TEST(MigrationFsdp2, Environment) {
  expect_init_joins();
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    profile::Session session(world.rank);
    expect_trains_as_unsharded(world, *sharded.module);
    session.stop();
    EXPECT_THAT(session.summary(), AllOf(HasSubstr("layers.0"), HasSubstr("root")));
    EXPECT_THAT(sharded.root.describe(), HasSubstr("layers.2"));
    EXPECT_GT(sharded.root.counters().reduces, 0);
  });
}

}  // namespace
}  // namespace fsdp::migration_fsdp2_test
