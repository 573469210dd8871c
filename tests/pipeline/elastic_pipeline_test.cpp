// A checkpoint holds the whole model, whatever its stages are: what one mesh saved, any other reads bit for bit, and
// goes on as the whole model would on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>

#include "tests/io/temporary_folder.h"
#include "tests/pipeline/staged_model.h"
#include "tests/support/close.h"

namespace fsdp::elastic_pipeline_test {
namespace {

using pipeline::Order;
using pipeline::Pipeline;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int kStepsOfALeg = 2;
constexpr int64_t kRows = 12;
constexpr double kRate = 0.02, kDecay = 0.1, kMostNorm = 0.5;

struct Leg {
  std::vector<MeshAxis> axes;
  int microbatches;
  Strategy strategy = Strategy::kOptimGrads;
  Order order = Order::k1F1B;
  int stages_per_rank = 1;

  int ranks() const {
    int product = 1;
    for (const MeshAxis& axis : axes) product *= axis.size;
    return product;
  }
};

std::vector<Leg> chain() {
  return {{{{"pp", 2}, {"shard", 2}}, 2},
          {{{"pp", 1}, {"shard", 4}}, 1, Strategy::kOptimGradsParams},
          {{{"pp", 1}, {"shard", 3}}, 2, Strategy::kOptim},
          {{{"pp", 4}, {"shard", 1}}, 6, Strategy::kNoShard, Order::kGPipe},
          {{{"pp", 2}, {"shard", 2}}, 2, Strategy::kOptimGradsParams, Order::kInterleaved, 2},
          {{{"pp", 2}, {"replicate", 2}, {"shard", 1}}, 3, Strategy::kHybrid}};
}

torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(kRate).weight_decay(kDecay); }

// Either of the two kinds.
struct Optimizer {
  Optimizer(const std::vector<at::Tensor>& leaves, at::ScalarType dtype) {
    if (dtype == at::kDouble) {
      torch = std::make_unique<torch::optim::AdamW>(leaves, adamw());
    } else {
      flat = std::make_unique<AdamW>(leaves, AdamWOptions{.lr = kRate, .weight_decay = kDecay});
    }
  }
  checkpoint::OptimizerRef ref() const {
    return flat ? checkpoint::OptimizerRef(*flat) : checkpoint::OptimizerRef(*torch);
  }
  void step() const { flat ? flat->step() : void(torch->step()); }
  std::unique_ptr<torch::optim::Optimizer> torch;
  std::unique_ptr<FlatOptimizer> flat;
};

torch::Tensor loss_of(const torch::Tensor& y, const torch::Tensor& target) {
  return torch::nn::functional::mse_loss(y, target);
}

double train_step(StagedModel& model, Pipeline& pipeline, const Optimizer& optimizer, const Mesh& mesh, const Leg& leg,
                  at::ScalarType dtype, int step) {
  const int data_ranks = mesh.size("replicate") * mesh.size("shard");
  const int64_t rows = kRows / data_ranks;
  const auto [inputs, targets] = staged_batch(step, kRows, dtype);
  const int64_t first = (mesh.index("replicate") * mesh.size("shard") + mesh.index("shard")) * rows;
  const auto own_inputs = inputs.narrow(0, first, rows).chunk(leg.microbatches);
  const auto own_targets = targets.narrow(0, first, rows).chunk(leg.microbatches);
  zero_grad(*model.module);
  const double loss = pipeline.step(own_inputs, [&](const at::Tensor& y, int microbatch) {
    return loss_of(y, own_targets[static_cast<size_t>(microbatch)]);
  });
  pipeline.clip_grad_norm_(kMostNorm);
  optimizer.step();
  return sum_over_ranks(mesh.world(), torch::full({1}, loss, torch::kDouble)).item<double>() / mesh.world().size;
}

void expect_same(const StateDict& actual, const StateDict& expected) {
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_EQ(actual.tensors.count(name), 1u) << name;
    EXPECT_TRUE(torch::equal(actual.tensors.at(name), tensor)) << name;
  }
}

// What a leg leaves.
struct Saved {
  StateDict model, optimizer;
  std::vector<double> losses;
};

Saved run_leg(const World& world, const Leg& leg, at::ScalarType dtype, TiedWeights tied,
              const std::filesystem::path& folder, int first_step, const std::optional<Saved>& before) {
  const Mesh mesh(world, leg.axes);
  StagedModel model(mesh, leg.stages_per_rank, dtype, tied);
  ShardOptions options;
  options.strategy = leg.strategy;
  model.shard(mesh, options);
  const Optimizer optimizer(model.leaves(), dtype);
  Pipeline pipeline(mesh, model.stages, leg.order);
  const checkpoint::State state{.model = *model.module, .optimizer = optimizer.ref()};
  if (before) {
    for (const auto& part : model.parts) {
      const torch::NoGradGuard no_grad;
      for (const auto& buffer : part->buffers()) buffer.fill_(-1);
    }
    checkpoint::load(folder / c10::str("step-", first_step), state);
    expect_same(full_state_dict(*model.module), before->model);
    expect_same(full_optimizer_state_dict(*model.module, state.optimizer), before->optimizer);
  }
  Saved saved;
  const auto step = [&](int number) { return train_step(model, pipeline, optimizer, mesh, leg, dtype, number); };
  for (int number = first_step; number < first_step + kStepsOfALeg; ++number) saved.losses.push_back(step(number));
  checkpoint::save(folder / c10::str("step-", first_step + kStepsOfALeg), state);
  saved.model = full_state_dict(*model.module);
  saved.optimizer = full_optimizer_state_dict(*model.module, state.optimizer);
  // To and from the memory of the ranks, too: as they are, and whole.
  const ShardedStateDict own = sharded_state_dict(*model.module);
  const StateDict on_rank_0 = full_state_dict(*model.module, DictHolder::kRankZero);
  EXPECT_EQ(on_rank_0.tensors.size(), world.rank == 0 ? saved.model.tensors.size() : 0u);
  step(90);
  load_sharded_state_dict(*model.module, own);
  expect_same(full_state_dict(*model.module), saved.model);
  step(91);
  load_full_state_dict(*model.module, on_rank_0, DictHolder::kRankZero);
  load_full_optimizer_state_dict(*model.module, state.optimizer, saved.optimizer);
  expect_same(full_state_dict(*model.module), saved.model);
  expect_same(full_optimizer_state_dict(*model.module, state.optimizer), saved.optimizer);
  return saved;
}

// Losses of one rank that never stops.
std::vector<double> losses_of_one_rank(at::ScalarType dtype, TiedWeights tied, size_t steps) {
  const auto whole = make_whole_staged(dtype, tied);
  torch::optim::AdamW optimizer(whole->parameters(), adamw());
  std::vector<double> losses;
  for (size_t step = 0; step < steps; ++step) {
    const auto [inputs, targets] = staged_batch(static_cast<int>(step), kRows, dtype);
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(whole->forward(inputs), targets);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(whole->parameters(), kMostNorm);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void expect_elastic(at::ScalarType dtype, TiedWeights tied, double bound) {
  SCOPED_TRACE(c10::str(dtype, tied == TiedWeights::kYes ? ", tied" : ""));
  const io::TemporaryFolder folder;
  std::optional<Saved> before;
  std::vector<double> losses;
  for (const Leg& leg : chain()) {
    std::mutex mutex;
    std::optional<Saved> saved;
    run_ranks(leg.ranks(), [&](const World& world) {
      Saved mine = run_leg(world, leg, dtype, tied, folder.path(), static_cast<int>(losses.size()), before);
      const std::lock_guard lock(mutex);
      if (world.rank == 0) saved = std::move(mine);
    });
    losses.insert(losses.end(), saved->losses.begin(), saved->losses.end());
    before = std::move(saved);
  }
  const std::vector<double> expected = losses_of_one_rank(dtype, tied, losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step] / expected[step], 1, bound) << "step " << step;
  }
  // A model without stages reads it too.
  run_ranks(2, [&](const World& world) {
    const auto whole = make_whole_staged(dtype, tied);
    fully_shard(*whole, Mesh::shard(world));
    const Optimizer optimizer(parameters(*whole), dtype);
    checkpoint::load(folder / c10::str("step-", losses.size()), {.model = *whole, .optimizer = optimizer.ref()});
    expect_same(full_state_dict(*whole), before->model);
    expect_same(full_optimizer_state_dict(*whole, optimizer.ref()), before->optimizer);
  });
}

TEST(ElasticPipeline, AnyMeshReadsWhatAnyOtherSaved) {
  expect_elastic(at::kDouble, TiedWeights::kNo, 1e-10);
  expect_elastic(at::kFloat, TiedWeights::kNo, 2e-4);
}

// The first stage's inlet is the last one's outlet: one tensor in a checkpoint, whose gradients add up.
TEST(ElasticPipeline, TiedWeightsTrainAsOne) {
  expect_elastic(at::kDouble, TiedWeights::kYes, 1e-10);
  expect_elastic(at::kFloat, TiedWeights::kYes, 2e-4);
}

// Two steps before an update, and clipping: gradients, norm and weights of one rank, with the same bits on both owners.
TEST(ElasticPipeline, TiedGradientsAccumulate) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
    StagedModel model(mesh, 1, at::kDouble, TiedWeights::kYes);
    model.shard(mesh, {});
    Pipeline pipeline(mesh, model.stages);
    const auto whole = make_whole_staged(at::kDouble, TiedWeights::kYes);
    for (int number = 0; number < 2; ++number) {
      const auto [inputs, targets] = staged_batch(number, kRows, at::kDouble);
      loss_of(whole->forward(inputs), targets).backward();
      const auto own_targets = targets.chunk(2)[static_cast<size_t>(mesh.index("shard"))].chunk(3);
      pipeline.step(inputs.chunk(2)[static_cast<size_t>(mesh.index("shard"))].chunk(3),
                    [&](const at::Tensor& y, int m) { return loss_of(y, own_targets[static_cast<size_t>(m)]); });
    }
    for (const auto& [name, gradient] : full_gradients(*model.module).tensors) {
      expect_close(gradient, whole->named_parameters()[name].grad(), name);
    }
    const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), kMostNorm);
    EXPECT_NEAR(pipeline.clip_grad_norm_(kMostNorm).item<double>() / norm, 1, 1e-12);
    const at::Tensor inlet = named_parameters(*model.parts[0]->inlet)[0].second;
    const auto all = gather_strings(world, c10::str(mesh.index("shard"), ":", inlet.grad().sum().item<double>(), " ",
                                                    inlet.grad().norm().item<double>()));
    EXPECT_EQ(all[0], all[2]);
    EXPECT_EQ(all[1], all[3]);
  });
}

TEST(ElasticPipeline, TiedWeightsAreUnitsOfTheirOwn) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
    StagedModel model(mesh, 1, at::kFloat, TiedWeights::kYes);
    const auto part = model.parts[0];
    if (mesh.index("pp") == 0)
      fully_shard(*part->inlet, mesh);  // half of it on each rank; in the other stage, one has all
    const pipeline::Stage stage = pipeline::stage_of(part, fully_shard(*part, mesh), part->naming());
    EXPECT_THAT([&] { Pipeline(mesh, {stage}); },
                ThrowsMessage<Error>(AllOf(HasSubstr("the weight 'inlet.weight' is of several stages: rank "),
                                           HasSubstr("Make it a unit of its own"))));
  });
}

// What ranks have for themselves is saved for each that has one; on other ranks some have some.
TEST(ElasticPipeline, BuffersThatDifferAreKept) {
  const io::TemporaryFolder folder;
  const auto gains = [](const StagedModel& model, const std::function<void(const at::Tensor&)>& visit) {
    const torch::NoGradGuard no_grad;
    for (const auto& part : model.parts) {
      for (const auto& buffer : part->buffers()) visit(buffer);
    }
  };
  const auto make = [&](const Mesh& mesh) {
    auto model = std::make_unique<StagedModel>(mesh, 1, at::kFloat, TiedWeights::kNo);
    model->shard(mesh, {});
    return model;
  };
  run_ranks(4, [&](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
    const auto model = make(mesh);
    gains(*model, [&](const at::Tensor& gain) { gain.fill_(world.rank + 1); });
    checkpoint::save(folder / "step-1", {.model = *model->module});
    gains(*model, [&](const at::Tensor& gain) { gain.zero_(); });
    checkpoint::load(folder / "step-1", {.model = *model->module});
    gains(*model, [&](const at::Tensor& gain) { EXPECT_EQ(gain.item<float>(), static_cast<float>(world.rank + 1)); });
  });
  run_ranks(3, [&](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 1}});
    const auto model = make(mesh);
    checkpoint::load(folder / "step-1", {.model = *model->module});
    int64_t block = 0;
    gains(*model, [&](const at::Tensor& gain) {
      const bool was_of_first_stage = block++ < kStagedBlocks / 2;
      EXPECT_EQ(gain.item<float>() <= 2, was_of_first_stage) << gain;
      EXPECT_GE(gain.item<float>(), 1);
    });
  });
}

TEST(ElasticPipeline, WhatDoesNotFitIsRefused) {
  const io::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
    StagedModel model(mesh, 1, at::kFloat, TiedWeights::kNo);
    const auto part = model.parts[0];
    const Unit root = fully_shard(*part, mesh);
    const auto is_refused = [](const char* text) { return ThrowsMessage<Error>(HasSubstr(text)); };
    EXPECT_THAT([&] { pipeline::stage_of(part, root, [](const std::string&) { return "one"; }); },
                is_refused("got the name 'one' for both"));
    EXPECT_THAT([&] { full_state_dict(*part); }, is_refused("nobody said what it is called in the whole model"));
    EXPECT_THAT([&] { checkpoint::save(folder / "step-1", {.model = *part}); }, is_refused("pipeline::stage_of()"));
    pipeline::stage_of(part, root, part->naming());
    EXPECT_THAT([&] { fsdp::save(*part, folder / "part.pt"); }, is_refused("a stage of a pipeline"));
    checkpoint::save(folder / "step-1", {.model = *part});
    // Of both stages, one is loaded as another model's.
    pipeline::stage_of(part, root, pipeline::prefixed(world.rank == 0 ? "" : "other."));
    EXPECT_THAT([&] { checkpoint::load(folder / "step-1", {.model = *part}); }, is_refused("model/blocks.4.down.bias"));
  });
}

}  // namespace
}  // namespace fsdp::elastic_pipeline_test
