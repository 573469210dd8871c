// PyTorch FSDP1, family by family of docs/migration.md: what its documentation shows, written in our names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/migration/launched_ranks.h"
#include "tests/promise/migration/twin.h"
#include "tests/promise/models/rounded_twin.h"
#include "tests/support/worlds.h"

namespace fsdp::migration_fsdp1_test {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace)
using schedule::BackwardPrefetch;
using schedule::Schedule;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<BlockModel> make_another(const World& world) {
  return make_seeded(kModelSeed + static_cast<uint64_t>(world.rank), [] { return std::make_shared<BlockModel>(3); });
}

void init_by_formula(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& weight : module.parameters()) {
    weight.copy_(torch::linspace(-0.4, 0.5, weight.numel()).view_as(weight));
  }
}

TEST(MigrationFsdp1, Constructor) {
  for_worlds([](const World& world) {
    const auto model = make_another(world);
    model->register_buffer("scale", torch::full({2}, world.rank));
    const Unit root = shard_where(*model, by_type<BlockImpl>(), Mesh::shard(world),
                                  {.strategy = parse_strategy("FULL_SHARD"),
                                   .precision = Precision::fp32(),
                                   .initial_weights = InitialWeights::kBroadcast,
                                   .main_weights = MainWeights::kOnHost,
                                   .schedule = Schedule::fsdp1(/*forward_prefetch=*/true, BackwardPrefetch::kPre,
                                                               /*limit_all_gathers=*/true)});
    EXPECT_EQ(root.num_units(), 4);
    EXPECT_TRUE(torch::equal(model->named_buffers()["scale"], torch::zeros({2})));
    EXPECT_TRUE(model->named_parameters().contains("layers.0.up.weight"));
    expect_trains_as_unsharded(world, *model);
  });
  run_ranks(2, [](const World& world) {
    const auto unsynced = make_another(world);
    EXPECT_THAT(error_of([&] { fully_shard(*unsynced, Mesh::shard(world)); }), HasSubstr("rank 1"));
    const auto model = make_block_model();
    fully_shard(*model, Mesh::shard(world), {.ignored_parameters = model->outlet->parameters()});
    parameters(*model);
    share_loss(world, *model, 1).backward();
    Twin twin;
    const auto alone = make_block_model();
    twin.backward(1);
    share_loss(world, *alone, 1).backward();
    for (const char* name : {"weight", "bias"}) {
      twin.model->outlet->named_parameters()[name].mutable_grad() = alone->outlet->named_parameters()[name].grad();
    }
    expect_same_gradients(*model, *twin.model);
  });
  run_ranks(1, [](const World& world) {
    const auto model = deferred([] {
      auto made = std::make_shared<BlockModel>(3);
      init_by_formula(*made);
      return made;
    });
    for (const auto& block : *model->layers) fully_shard(*block, Mesh::shard(world));
    fully_shard(*model, Mesh::shard(world));
    const auto twin = make_block_model();
    init_by_formula(*twin);
    expect_same_weights(*model, *twin, 0);
  });
}

TEST(MigrationFsdp1, ShardingStrategy) {
  const struct {
    const char* theirs;
    Strategy ours;
    int replicas;
    int64_t copies, gathers, reduces;  // of two microbatches
  } cases[] = {{"FULL_SHARD", Strategy::kOptimGradsParams, 1, 1, 2 * 6, 2 * 4},
               {"SHARD_GRAD_OP", Strategy::kOptimGrads, 1, 1, 2 * 4, 2 * 4},
               {"NO_SHARD", Strategy::kNoShard, 1, 4, 0, 4},
               {"HYBRID_SHARD", Strategy::kHybrid, 2, 2, 2 * 6, 2 * 4},
               {"_HYBRID_SHARD_ZERO2", Strategy::kHybridZero2, 2, 2, 2 * 4, 2 * 4}};
  for (const auto& c : cases) {
    EXPECT_EQ(parse_strategy(c.theirs), c.ours);
    run_ranks(4, [&](const World& world) {
      SCOPED_TRACE(c.theirs);
      const Mesh mesh(world, {{"replicate", c.replicas}, {"shard", 4 / c.replicas}});
      ShardedBlocks sharded = shard_blocks(mesh, {.strategy = c.ours});
      EXPECT_EQ(copies_of_main_weights(world, *sharded.module), c.copies);
      expect_trains_as_unsharded(world, *sharded.module);
      const Counters counters = counters_of_a_step(world, *sharded.module, sharded.root, 2);
      expect_gathers(counters, c.gathers);
      EXPECT_EQ(counters.reduces, c.reduces);
      EXPECT_EQ(counters.resident_unsharded_bytes, 0);
    });
  }
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"replicate", world.size / world.local_size}, {"shard", world.local_size}});
    const auto model = make_block_model();
    for (size_t i = 0; i < 3; ++i) {
      const Strategy nested = i == 1 ? Strategy::kNoShard : Strategy::kHybrid;
      fully_shard(model->block(i), mesh, {.strategy = nested});
    }
    const Unit root = fully_shard(*model, mesh, {.strategy = Strategy::kHybrid});
    EXPECT_EQ(copies_of_main_weights(world, model->block(0)), 1);
    EXPECT_EQ(copies_of_main_weights(world, model->block(1)), 2);
    expect_trains_as_unsharded(world, *model);
  });
}

TEST(MigrationFsdp1, BackwardPrefetch) {
  const int64_t root_bytes = root_shard_numel(2) * 2 * 4, block_bytes = block_shard_numel(2) * 2 * 4;
  const struct {
    const char* theirs;
    BackwardPrefetch ours;
    int64_t blocks_at_once;
  } cases[] = {{"BACKWARD_PRE", BackwardPrefetch::kPre, 2},
               {"BACKWARD_POST", BackwardPrefetch::kPost, 2},
               {"None", BackwardPrefetch::kNone, 1}};
  for (const auto& c : cases) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(c.theirs);
      ShardedBlocks sharded = shard_blocks(world, {.schedule = Schedule::fsdp1(false, c.ours, true)});
      expect_trains_as_unsharded(world, *sharded.module);
      const Counters counters = counters_of_a_step(world, *sharded.module, sharded.root);
      expect_gathers(counters, 6);
      if (one_copy_of_weights()) return;
      EXPECT_EQ(counters.peak_unsharded_bytes, root_bytes + c.blocks_at_once * block_bytes);
    });
  }
}

// The gradients that a model of `dtype` has of a batch.
void expect_gradients_in(const World& world, const ShardOptions& options, torch::Dtype dtype, double tolerance) {
  ShardedBlocks sharded = shard_blocks(world, options);
  parameters(*sharded.module);
  RoundedTwin twin(dtype, world.size);
  const auto loss = [](const torch::Tensor& y) { return y.to(torch::kFloat).square().mean(); };
  twin.add_gradients(batch(1).to(dtype),
                     [&](BlockModel& model, const torch::Tensor& rows) { return loss(model.forward(rows)); });
  loss(forward(*sharded.module, share_of(world, batch(1)))).backward();
  expect_same_gradients(*sharded.module, twin.master(), tolerance);
  for (const torch::Tensor& leaf : parameters(*sharded.module)) {
    EXPECT_EQ(leaf.grad().scalar_type(), options.precision.main_grad.value_or(at::kFloat));
  }
}

TEST(MigrationFsdp1, MixedPrecision) {
  constexpr double kLastDigit = 0.004;  // of bf16 gradients, which are below 0.5 here
  for_worlds([](const World& world) {
    expect_gradients_in(world, {.precision = Precision::fp32()}, torch::kFloat, 1e-5);
    expect_gradients_in(world, {.precision = Precision::bf16()}, torch::kBFloat16, 1e-5);
    const Precision all_bf16{.param = at::kBFloat16, .reduce = at::kBFloat16};
    expect_gradients_in(world, {.precision = all_bf16}, torch::kBFloat16, kLastDigit);
    const Precision keeps{.param = at::kBFloat16, .reduce = at::kFloat, .main_grad = at::kBFloat16};
    expect_gradients_in(world, {.precision = keeps}, torch::kBFloat16, kLastDigit);
    const Precision half{.param = at::kHalf, .reduce = at::kHalf};
    expect_gradients_in(world, {.precision = half}, torch::kHalf, 1e-3);
  });
  run_ranks(2, [](const World& world) {
    auto model = make_seeded(kModelSeed, [] {
      return nn::Sequential(nn::Linear(5, 6), nn::LayerNorm(nn::LayerNormOptions({6})), nn::Linear(6, 3));
    });
    model->register_buffer("scale", torch::full({2}, 0.1));
    fully_shard(*model->ptr(1), Mesh::shard(world), {.precision = Precision::fp32()});
    Precision policy = Precision::bf16();
    policy.buffers = at::kBFloat16;
    const Unit root = fully_shard(*model, Mesh::shard(world), {.precision = policy});
    EXPECT_EQ(model->named_buffers()["scale"].scalar_type(), at::kBFloat16);
    EXPECT_EQ(full_state_dict(*model).tensors.at("scale").scalar_type(), at::kFloat);
    EXPECT_EQ(forward(*model, torch::ones({2, 5})).scalar_type(), at::kBFloat16);
    const auto scope = full_parameters(root);
    EXPECT_EQ(model->named_parameters()["0.weight"].scalar_type(), at::kBFloat16);
    EXPECT_EQ(model->named_parameters()["1.weight"].scalar_type(), at::kFloat);
  });
}

TEST(MigrationFsdp1, CpuOffload) {
  for (const MainWeights where : {MainWeights::kOnDevice, MainWeights::kOnHost}) {
    for_worlds([&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world, {.main_weights = where});
      expect_trains_as_unsharded(world, *sharded.module);
      for (const torch::Tensor& leaf : parameters(*sharded.module)) EXPECT_TRUE(leaf.is_cpu());
    });
  }
}

void expect_policy(const WrapPolicy& policy, int64_t num_units) {
  run_ranks(2, [&](const World& world) {
    const auto model = make_block_model();
    EXPECT_EQ(shard_where(*model, policy, Mesh::shard(world)).num_units(), num_units);
    expect_trains_as_unsharded(world, *model);
  });
}

TEST(MigrationFsdp1, WrappingPolicies) {
  expect_policy(by_size(1), 2 + 3 * 2 + 1);
  expect_policy(by_size(200), 3 + 1);
  expect_policy(by_type<BlockImpl>(), 3 + 1);
  expect_policy(by_type<BlockImpl, nn::LinearImpl>(), 2 + 3 * 2 + 1);
  expect_policy([](const std::string& name, const nn::Module&, int64_t) { return name.ends_with(".up"); }, 3 + 1);
  const auto big_but_no_up = [](const std::string& name, const nn::Module&, int64_t numel) {
    return numel >= 100 && !name.ends_with("up");
  };
  expect_policy(big_but_no_up, 3 + 3 + 1);
  run_ranks(2, [](const World& world) {
    const auto model = make_block_model();
    const auto modules = model->modules();
    for (auto module = modules.rbegin(); module != modules.rend(); ++module) {
      const bool is_block = (*module)->as<BlockImpl>() != nullptr;
      if (is_block) fully_shard(**module, Mesh::shard(world), {.reshard_after_forward = false});
    }
    const Unit root = fully_shard(*model, Mesh::shard(world));
    EXPECT_EQ(root.num_units(), 3 + 1);
    expect_trains_as_unsharded(world, *model);
    expect_gathers(counters_of_a_step(world, *model, root), 3 + 1);
  });
  run_ranks(2, [](const World& world) {
    nn::Sequential model;
    for (int i = 0; i < 2; ++i) {
      model->push_back(make_seeded(kModelSeed, [] { return nn::Linear(5, 5); }));
      fully_shard(*model->ptr(model->size() - 1), Mesh::shard(world));
    }
    EXPECT_EQ(fully_shard(*model, Mesh::shard(world)).num_units(), 2 + 1);
  });
}

std::vector<std::string> names_of(const nn::Module& module) { return module.named_parameters().keys(); }

TEST(MigrationFsdp1, Methods) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    Twin twin;
    EXPECT_EQ(names_of(*sharded.module), names_of(*twin.model));
    EXPECT_EQ(named_parameters(*sharded.module).front().first, "inlet.weight");
    SGD optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum});
    sharded.root.reset_counters();
    {
      auto scope = no_sync(sharded.root);
      share_loss(world, *sharded.module, 1).backward();
    }
    EXPECT_EQ(sharded.root.counters().reduces, 0);
    share_loss(world, *sharded.module, 2).backward();
    twin.backward(1);
    twin.backward(2);
    const StateDict gradients = full_gradients(*sharded.module);
    for (const auto& item : twin.model->named_parameters()) {
      EXPECT_TRUE(torch::allclose(gradients.tensors.at(item.key()), item.value().grad(), 1e-4, 1e-6)) << item.key();
    }
    for (const double type : {std::numeric_limits<double>::infinity(), 1.0, 2.0}) {
      const double norm = clip_grad_norm_(*sharded.module, 0.1, type).item<double>();
      EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(twin.model->parameters(), 0.1, type), 1e-4) << type;
    }
    expect_same_gradients(*sharded.module, *twin.model);
    optimizer.step();
    twin.step();
    expect_same_weights(*sharded.module, *twin.model);
  });
}

void expect_readable(const nn::Module& sharded, const nn::Module& twin) {
  const auto expected = twin.named_parameters();
  for (const auto& item : sharded.named_parameters()) {
    EXPECT_TRUE(torch::allclose(item.value(), expected[item.key()], 1e-5, 1e-6)) << item.key();
  }
}

TEST(MigrationFsdp1, MethodsSummonFullParams) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    {
      FullParameters scope(sharded.blocks[1]);
      expect_readable(sharded.module->block(1), twin->block(1));
    }
    {
      auto scope = full_parameters(sharded.root);
      if (world.rank == 0) expect_readable(*sharded.module, *twin);
    }
    for (const auto& model : {sharded.module, twin}) {
      std::optional<FullParameters> scope;
      if (model != twin) scope.emplace(sharded.root, WriteBack::kYes);
      const torch::NoGradGuard no_grad;
      model->outlet->weight.mul_(2);
    }
    expect_same_weights(*sharded.module, *twin);
    const StateDict on_host = full_state_dict(*sharded.module);
    EXPECT_TRUE(torch::equal(on_host.tensors.at("outlet.weight"), twin->outlet->weight));
    sharded.root.set_all_reduce_hook([](const torch::Tensor& sum) { sum.mul_(3); });
    parameters(*sharded.module);
    share_loss(world, *sharded.module, 1).backward();
    (3 * loss_of(*twin, batch(1))).backward();
    expect_same_gradients(*sharded.module, *twin);
  });
}

// A model that has trained, and its optimizer.
struct Trained {
  Trained(const World& world, Strategy strategy)
      : sharded(shard_blocks(world, {.strategy = strategy})),
        optimizer(parameters(*sharded.module), {.lr = kRate, .momentum = kMomentum}) {}
  void expect_next_step_as(const World& world, Twin twin) {
    share_loss(world, *sharded.module, 9).backward();
    optimizer.step();
    zero_grad(*sharded.module);
    twin.backward(9);
    twin.step();
    expect_same_weights(*sharded.module, *twin.model);
  }
  ShardedBlocks sharded;
  SGD optimizer;
};

TEST(MigrationFsdp1, StateDictsAndOptimizerState) {
  const io::TemporaryFolder folder;
  StateDict weights, momenta;
  run_ranks(2, [&](const World& world) {
    Trained trained(world, Strategy::kOptimGradsParams);
    nn::Module& model = *trained.sharded.module;
    train(world, *trained.sharded.module, trained.optimizer);
    const StateDict full = full_state_dict(model, DictHolder::kRankZero);
    const StateDict optim = full_optimizer_state_dict(model, trained.optimizer, DictHolder::kRankZero);
    EXPECT_EQ(full.tensors.empty(), world.rank != 0);
    if (world.rank == 0) weights = full, momenta = optim;
    checkpoint::save(folder / "step-3", {.model = model, .optimizer = trained.optimizer});
    save(model, (folder / "m.pt").string());

    Trained same_cut(world, Strategy::kOptimGradsParams);
    load_sharded_state_dict(*same_cut.sharded.module, sharded_state_dict(model));
    load_sharded_optimizer_state_dict(*same_cut.sharded.module, same_cut.optimizer,
                                      sharded_optimizer_state_dict(model, trained.optimizer));
    Twin twin;
    train(twin);
    same_cut.expect_next_step_as(world, std::move(twin));
  });
  Twin twin;
  train(twin);
  const auto unsharded = std::make_shared<BlockModel>(3);
  torch::load(unsharded, (folder / "m.pt").string());
  for (const auto& item : twin.model->named_parameters()) {
    EXPECT_TRUE(torch::allclose(weights.tensors.at(item.key()), item.value(), 1e-4, 1e-5)) << item.key();
    EXPECT_TRUE(torch::equal(weights.tensors.at(item.key()), unsharded->named_parameters()[item.key()]));
    EXPECT_TRUE(momenta.tensors.contains("momentum_buffer/" + item.key())) << momenta.tensors.begin()->first;
  }
  run_ranks(3, [&](const World& world) {
    Trained from_dict(world, Strategy::kOptimGrads), from_files(world, Strategy::kNoShard);
    load_full_state_dict(*from_dict.sharded.module, world.rank == 0 ? weights : StateDict(), DictHolder::kRankZero);
    load_full_optimizer_state_dict(*from_dict.sharded.module, from_dict.optimizer,
                                   world.rank == 0 ? momenta : StateDict(), DictHolder::kRankZero);
    checkpoint::load(folder / "step-3", {.model = *from_files.sharded.module, .optimizer = from_files.optimizer});
    for (Trained* loaded : {&from_dict, &from_files}) {
      Twin next;
      train(next);
      loaded->expect_next_step_as(world, std::move(next));
    }
    ShardedBlocks weights_only = shard_blocks(world);
    load(*weights_only.module, (folder / "m.pt").string());
    expect_same_weights(*weights_only.module, *unsharded, 0);
  });
}

TEST(MigrationFsdp1, CommunicationHooks) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks plain = shard_blocks(world),
                  compressed = shard_blocks(world, {.precision = {.reduce = at::kBFloat16}});
    const int64_t bytes = counters_of_a_step(world, *plain.module, plain.root).reduce_bytes;
    EXPECT_NEAR(counters_of_a_step(world, *compressed.module, compressed.root).reduce_bytes, bytes / 2, bytes / 20.0);
  });
  for_worlds([](const World& world) {
    for (const auto reduce : {at::kFloat, at::kBFloat16, at::kHalf}) {
      ShardedBlocks sharded = shard_blocks(world, {.precision = {.reduce = reduce}});
      parameters(*sharded.module);
      Twin twin;
      for (const double divisor : {0.0, 4.0}) {
        if (divisor > 0) sharded.root.set_gradient_divide_factor(divisor);
        share_loss(world, *sharded.module, 1).backward();
        twin.backward(1, divisor > 0 ? world.size / divisor : 1);
        expect_same_gradients(*sharded.module, *twin.model, reduce == at::kFloat ? 1e-5 : 0.01);
      }
    }
  });
}

// Tied weights in two wrappers, a frozen weight beside a bias that is not, recomputed blocks.
struct MatrixImpl : nn::Module {
  explicit MatrixImpl(const torch::Tensor& start) {
    weight = register_parameter("weight", start);
    bias = register_parameter("bias", torch::zeros({6}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(torch::linear(x, weight, bias)); }
  torch::Tensor weight, bias;
};

struct Habits : nn::Module {
  Habits() {
    inlet = register_module("inlet", nn::Linear(5, 6));
    first = register_module("first", std::make_shared<MatrixImpl>(torch::randn({6, 6})));
    second = register_module("second", std::make_shared<MatrixImpl>(first->weight));
    inlet->weight.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto block = [](MatrixImpl& matrix) { return [&](const torch::Tensor& y) { return matrix.forward(y); }; };
    return recompute_every(1, {block(*first), block(*second)}, inlet(x));
  }
  nn::Linear inlet{nullptr};
  std::shared_ptr<MatrixImpl> first, second;
};

TEST(MigrationFsdp1, CommunicationHooksLossScalingBehaviour) {
  for_worlds([](const World& world) {
    const auto make = [] { return std::make_shared<Habits>(); };
    const auto model = make_seeded(kModelSeed, make), twin = make_seeded(kModelSeed, make);
    const LayoutOptions rows{.granularity = layout::Granularity::kRow};
    fully_shard(*model->first, Mesh::shard(world), {.layout = rows});
    fully_shard(*model->second, Mesh::shard(world), {.layout = rows});
    const Unit root = fully_shard(*model, Mesh::shard(world), {.layout = rows});
    torch::optim::SGD theirs({twin->inlet->bias, twin->first->weight, twin->first->bias, twin->second->bias}, kRate);
    SGD ours(parameters(*model), {.lr = kRate});
    EXPECT_EQ(parameters(*model).size(), 5);  // the tied weight once
    for (const auto& [name, leaf] : named_parameters(*model)) {
      if (name == "first.weight") {
        EXPECT_EQ(local_range(leaf).begin % 6, 0);
      }
    }
    GradScaler scaler({.init_scale = 1024});
    profile::Session session;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      if (seed == 3) {
        for (const auto& m : {model, twin}) m->inlet->bias.set_requires_grad(false);
        zero_grad(*model);
        theirs.zero_grad();
      }
      scaler.scale(model->forward(share_of(world, batch(seed))).square().mean()).backward();
      scaler.unscale_(*model);
      EXPECT_EQ(scaler.step(ours), ScaledStep::kTaken);
      scaler.update();
      zero_grad(*model);
      twin->forward(batch(seed)).square().mean().backward();
      theirs.step();
      theirs.zero_grad();
    }
    expect_same_weights(*model, *twin);
    session.stop();
    EXPECT_THAT(session.summary(), HasSubstr("second"));
    EXPECT_THAT(root.describe(), AllOf(HasSubstr("\n  first "), HasSubstr("\n  second ")));
    EXPECT_EQ(place_of(model->second->bias)->name, "second.bias");
    EXPECT_EQ(place_of(model->second->weight)->unit, "first");
    model->first->forward(torch::ones({2, 6})).sum().backward();
  });
}

TEST(MigrationFsdp1, CommunicationHooksChecks) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto late = make_block_model();
    SGD before_sharding(late->parameters(), {.lr = kRate});
    fully_shard(*late, Mesh::shard(world), options);
    const auto train_late = [&] {
      share_loss(world, *late, 1).backward();
      before_sharding.step();
    };
    EXPECT_THAT(error_of(train_late), HasSubstr("fsdp::parameters(module), after fully_shard()"));
    expect_same_weights(*late, *make_block_model(), 0);
  });
}

TEST(MigrationFsdp1, Environment) {
  expect_init_joins();
  expect_init_joins({{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}, {"TORCHELASTIC_RESTART_COUNT", "1"}});
  expect_init_joins({{"FSDP_JOB_SECRET", "a text that nobody guesses, of 40 letters"}});
}

}  // namespace
}  // namespace fsdp::migration_fsdp1_test
