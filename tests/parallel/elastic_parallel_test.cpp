// A checkpoint holds whole tensors, whatever the mesh: what ranks along "tp" saved, any other mesh reads bit for bit,
// and goes on as the whole model would on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>

#include "tests/checkpoint/logical_tensors.h"
#include "tests/io/temporary_folder.h"
#include "tests/parallel/cut_model.h"

namespace fsdp::elastic_parallel_test {
namespace {

using parallel::Tokens;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int kStepsOfALeg = 2;
constexpr int64_t kRows = 12, kTokens = 8;
constexpr double kRate = 0.01, kDecay = 0.1;

struct Leg {
  std::vector<MeshAxis> axes;
  Tokens tokens;
  ShardOptions options = {};
};

ShardOptions options_of(Strategy strategy, LayoutOptions layout = {}) {
  ShardOptions options;
  options.strategy = strategy;
  options.layout = layout;
  return options;
}

std::vector<Leg> chain() {
  using layout::Granularity;
  return {{{{"tp", 2}}, Tokens::kAll},
          {{{"shard", 3}}, Tokens::kAll, options_of(Strategy::kOptim)},
          {{{"shard", 2}, {"tp", 4}}, Tokens::kOwn, options_of(Strategy::kOptimGradsParams, {Granularity::kBlock, 7})},
          {{{"shard", 2}, {"tp", 2}}, Tokens::kOwn, options_of(Strategy::kNoShard)},
          {{{"replicate", 2}, {"shard", 2}, {"tp", 2}}, Tokens::kAll, options_of(Strategy::kHybridOptim)},
          {{{"shard", 3}, {"tp", 2}}, Tokens::kAll, options_of(Strategy::kOptimGradsParams, {Granularity::kTensor})},
          {{{"tp", 1}}, Tokens::kAll}};
}

int64_t count_of(const torch::Tensor& targets) { return targets.ne(-100).sum().item<int64_t>(); }

void expect_same(const StateDict& actual, const StateDict& expected) {
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(torch::equal(actual.tensors.at(name), tensor)) << name;
  }
}

// What a leg leaves.
struct Saved {
  StateDict model, optimizer;
  std::vector<double> losses;
};

double train_step(CutModel& model, Unit& root, AdamW& optimizer, const Mesh& mesh, int step) {
  const int data_ranks = mesh.size("replicate") * mesh.size("shard");
  const int64_t rows = kRows / data_ranks;
  const int64_t first = (mesh.index("replicate") * mesh.size("shard") + mesh.index("shard")) * rows;
  const auto [ids, targets] = cut_batch(static_cast<uint64_t>(step), kRows, kTokens);
  const torch::Tensor own = targets.narrow(0, first, rows);
  zero_grad(model);
  root.set_gradient_scale(GradScale::per_token(count_of(own)));
  const torch::Tensor loss = model.loss(ids.narrow(0, first, rows), own);
  loss.backward();
  clip_grad_norm_(model, 1.0);
  optimizer.step();
  return (sum_over_ranks(mesh.world(), loss.detach()) / mesh.size("tp") / count_of(targets)).item<double>();
}

// Loads what the leg before saved, is compared with it, trains and saves.
Saved run_leg(const World& world, const Leg& leg, const std::filesystem::path& root_folder, int first_step,
              const std::optional<Saved>& before) {
  const Mesh mesh(world, leg.axes);
  const auto model = make_cut_model(mesh, leg.tokens, at::kFloat);
  Unit root = shard_cut_model(*model, mesh, leg.options);
  AdamW optimizer(parameters(*model), {.lr = kRate, .weight_decay = kDecay});
  if (before) {
    checkpoint::load(root_folder / c10::str("step-", first_step), {.model = *model, .optimizer = optimizer});
    expect_same(full_state_dict(*model), before->model);
    expect_same(full_optimizer_state_dict(*model, optimizer), before->optimizer);
  }
  Saved saved;
  for (int step = first_step; step < first_step + kStepsOfALeg; ++step) {
    saved.losses.push_back(train_step(*model, root, optimizer, mesh, step));
  }
  checkpoint::save(root_folder / c10::str("step-", first_step + kStepsOfALeg),
                   {.model = *model, .optimizer = optimizer});
  saved.model = full_state_dict(*model);
  saved.optimizer = full_optimizer_state_dict(*model, optimizer);
  // To and from the memory of each rank, too: cut the same way, and whole.
  const ShardedStateDict own = sharded_state_dict(*model);
  const ShardedStateDict own_moments = sharded_optimizer_state_dict(*model, optimizer);
  train_step(*model, root, optimizer, mesh, 99);
  load_sharded_state_dict(*model, own);
  load_sharded_optimizer_state_dict(*model, optimizer, own_moments);
  expect_same(full_state_dict(*model), saved.model);
  expect_same(full_optimizer_state_dict(*model, optimizer), saved.optimizer);
  train_step(*model, root, optimizer, mesh, 98);
  load_full_state_dict(*model, saved.model);
  expect_same(full_state_dict(*model), saved.model);
  return saved;
}

TEST(ElasticParallel, AnyMeshReadsWhatAnyOtherSaved) {
  const io::TemporaryFolder folder;
  std::optional<Saved> before;
  int step = 0;
  std::vector<double> losses;
  for (const Leg& leg : chain()) {
    int ranks = 1;
    for (const MeshAxis& axis : leg.axes) ranks *= axis.size;
    std::mutex mutex;
    std::optional<Saved> saved;
    run_ranks(ranks, [&](const World& world) {
      Saved mine = run_leg(world, leg, folder.path(), step, before);
      const std::lock_guard lock(mutex);
      if (world.rank == 0) saved = std::move(mine);
    });
    step += kStepsOfALeg;
    const LogicalTensors stored = read_logical_tensors(folder.path() / c10::str("step-", step));
    for (const auto& [name, tensor] : saved->model.tensors) {
      EXPECT_TRUE(torch::equal(stored.at("model/" + name), tensor)) << name;
    }
    losses.insert(losses.end(), saved->losses.begin(), saved->losses.end());
    before = std::move(saved);
  }
  // One rank that never stopped.
  const auto whole = make_whole_model(at::kFloat);
  torch::optim::AdamW optimizer(whole->parameters(), torch::optim::AdamWOptions(kRate).weight_decay(kDecay));
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto [ids, targets] = cut_batch(i, kRows, kTokens);
    optimizer.zero_grad();
    const torch::Tensor loss = whole->loss(ids, targets) / count_of(targets);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(whole->parameters(), 1.0);
    optimizer.step();
    EXPECT_NEAR(losses[i], loss.item<double>(), 2e-4) << "step " << i;
  }
}

}  // namespace
}  // namespace fsdp::elastic_parallel_test
