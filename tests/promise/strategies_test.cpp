// Every strategy, on random module trees, worlds of 1 to 8 ranks, 1 and 3 microbatches, fp32 and bf16, under random
// schedules and allocators: the training of an unsharded model that plays all ranks one after the other.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "fsdp/fsdp.h"
#include "tests/promise/zoo/random_tree.h"
#include "tests/support/ranks.h"

namespace fsdp::strategies_test {
namespace {

using testing::make_seeded;
using testing::run_ranks;
using testing::TreeImpl;
using testing::TreePlan;
using testing::TreeUnit;

constexpr int kSteps = 2;
constexpr double kMaxNorm = 1.0;  // some of these models would run away
constexpr int64_t kShare = 3;     // rows of one rank per microbatch
constexpr Strategy kStrategies[] = {Strategy::kNoShard,          Strategy::kOptim,  Strategy::kOptimGrads,
                                    Strategy::kOptimGradsParams, Strategy::kHybrid, Strategy::kHybridZero2,
                                    Strategy::kHybridOptim};

struct Trial {
  unsigned seed = 0;
  TreePlan tree;
  int replicas = 1;
  int shards = 1;
  int num_microbatches = 1;
  bool bf16 = false;
  ShardOptions options;

  int world() const { return replicas * shards; }
  std::string text() const {
    return c10::str("seed ", seed, ": ", name(options.strategy), ", ", replicas, "x", shards, " ranks, ",
                    num_microbatches, " microbatches, ", bf16 ? "bf16" : "fp32", ", ",
                    schedule::describe(options.schedule), ", allocator ", static_cast<int>(options.allocator.kind));
  }
};

struct Result {
  std::vector<double> losses;
  std::vector<torch::Tensor> weights;  // of the whole model, flattened
};

torch::Tensor rows_of(const Trial& trial, int step, int microbatch) {
  auto generator = testing::generator(trial.seed * 1000ULL + static_cast<unsigned>(step * 10 + microbatch));
  return torch::randn({kShare * trial.world(), trial.tree.width}, generator)
      .to(trial.bf16 ? torch::kBFloat16 : torch::kFloat);
}

torch::Tensor loss_of(TreeImpl& model, const torch::Tensor& rows, int num_microbatches) {
  return model.forward(rows).square().mean() / num_microbatches;
}

std::shared_ptr<TreeImpl> make_tree(const Trial& trial) {
  return make_seeded(trial.seed, [&] { return std::make_shared<TreeImpl>(trial.tree); });
}

// fp32 weights; gradients of each rank's rows in the compute dtype, added up in fp32.
Result train_unsharded(const Trial& trial) {
  const auto master = make_tree(trial);
  const auto compute = make_tree(trial);
  if (trial.bf16) compute->to(torch::kBFloat16);
  torch::optim::SGD optimizer(master->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto main = master->parameters();
  const auto copies = compute->parameters();
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    double total = 0;
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < main.size(); ++i) copies[i].data().copy_(main[i]);
    }
    for (int microbatch = 0; microbatch < trial.num_microbatches; ++microbatch) {
      for (int rank = 0; rank < trial.world(); ++rank) {
        const torch::Tensor rows = rows_of(trial, step, microbatch).narrow(0, rank * kShare, kShare);
        const torch::Tensor loss = loss_of(*compute, rows, trial.num_microbatches);
        loss.backward();
        total += loss.item<double>() / trial.world();
        for (size_t i = 0; i < main.size(); ++i) {
          if (!copies[i].grad().defined()) continue;
          const torch::Tensor part = copies[i].grad().to(torch::kFloat) / trial.world();
          torch::Tensor(main[i]).mutable_grad() = main[i].grad().defined() ? main[i].grad() + part : part;
          torch::Tensor(copies[i]).mutable_grad().reset();
        }
      }
    }
    torch::nn::utils::clip_grad_norm_(main, kMaxNorm);
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(total);
  }
  for (const auto& parameter : main) result.weights.push_back(parameter.detach().flatten());
  return result;
}

// Bytes of one group's gathered weights, at most: every tensor starts at a 16-byte boundary, and so does every shard.
int64_t bytes_at_most(const std::vector<int64_t>& numels, const Trial& trial) {
  if (numels.empty()) return 0;
  const int64_t sum = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  const int64_t padding = (static_cast<int64_t>(numels.size()) + trial.world()) * 8;
  return (sum + padding) * (trial.bf16 ? 2 : 4);
}

void expect_counts(const Trial& trial, const Counters& counters) {
  const std::vector<TreeUnit> units = testing::units_of(trial.tree);
  int64_t groups = 0;
  int64_t trainable = 0;
  for (const TreeUnit& unit : units) {
    groups += (unit.trainable.empty() ? 0 : 1) + (unit.frozen.empty() ? 0 : 1);
    trainable += unit.trainable.empty() ? 0 : 1;
  }
  const int64_t microbatches = trial.num_microbatches;
  const StrategyTraits strategy = traits(trial.options.strategy);
  const bool every = strategy.reduce_timing == ReduceTiming::kEveryMicrobatch;
  EXPECT_EQ(counters.reduces, trainable * (every ? microbatches : 1));
  if (testing::one_copy_of_weights() && (!strategy.shards_over_replicas || trial.replicas == 1)) {
    EXPECT_EQ(counters.gathers, 0);
  } else if (strategy.gather == GatherTiming::kNever) {
    EXPECT_EQ(counters.gathers, 0);
  } else if (strategy.gather == GatherTiming::kPerStep) {
    EXPECT_LE(counters.gathers, groups);
    EXPECT_GE(counters.gathers, trial.shards > 1 ? trainable : 0);
  } else {
    EXPECT_LE(counters.gathers, 4 * microbatches * testing::node_runs(trial.tree));
    EXPECT_GE(counters.gathers, trial.world() > 1 && trial.shards > 1 ? microbatches * groups : 0);
  }
  EXPECT_EQ(counters.resident_unsharded_bytes, 0);
}

// The root, the ancestors, the unit that computes, the one before and the one ahead, if no unit is kept on purpose.
void expect_peak(const Trial& trial, const Counters& counters) {
  const bool frees = trial.options.strategy == Strategy::kOptimGradsParams &&
                     trial.options.reshard_after_forward == ReshardAfterForward(true);
  if (!frees || testing::node_runs(trial.tree) != static_cast<int64_t>(testing::units_of(trial.tree).size())) return;
  int64_t largest = 0;
  int64_t ancestors = 0;
  int max_depth = 0;
  for (const TreeUnit& unit : testing::units_of(trial.tree)) {
    largest = std::max(largest, bytes_at_most(unit.trainable, trial) + bytes_at_most(unit.frozen, trial));
    max_depth = std::max(max_depth, unit.depth);
  }
  ancestors = max_depth * largest;
  const int ahead = trial.options.schedule.kind == schedule::Kind::kStaticOrder ? 1 : 0;
  const int delayed = trial.options.schedule.kind == schedule::Kind::kDelayedRelease ? trial.options.schedule.delay : 0;
  EXPECT_LE(counters.peak_unsharded_bytes, ancestors + (2 + ahead + delayed) * largest);
}

void train_sharded(const World& world, const Trial& trial, const Result& expected) {
  const auto model = make_tree(trial);
  const Mesh mesh(world, {{"replicate", trial.replicas}, {"shard", trial.shards}});
  testing::shard_units(*model, trial.tree, mesh, trial.options);
  Unit root = fully_shard(*model, mesh, trial.options);
  const auto leaves = named_parameters(*model);
  std::vector<torch::Tensor> trainable;
  for (const auto& [name, leaf] : leaves) {
    if (leaf.requires_grad()) trainable.push_back(leaf);
  }
  SGD optimizer(trainable, {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    root.reset_counters();
    double total = 0;
    for (int microbatch = 0; microbatch < trial.num_microbatches; ++microbatch) {
      const Microbatch scope(root, microbatch + 1 == trial.num_microbatches);
      const torch::Tensor rows = rows_of(trial, step, microbatch).narrow(0, world.rank * kShare, kShare);
      const torch::Tensor loss = loss_of(*model, rows, trial.num_microbatches);
      loss.backward();
      total += sum_over_ranks(world, loss.detach().to(torch::kDouble)).item<double>() / world.size;
    }
    expect_counts(trial, root.counters());
    expect_peak(trial, root.counters());
    clip_grad_norm_(*model, kMaxNorm);
    optimizer.step();
    zero_grad(*model);
    EXPECT_NEAR(total, expected.losses[static_cast<size_t>(step)], (trial.bf16 ? 1e-2 : 1e-5) * (1 + std::abs(total)));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LocalRange range = local_range(leaves[i].second);
    const torch::Tensor want = expected.weights[i].slice(0, range.begin, range.end);
    if (want.numel() == 0) continue;
    EXPECT_LT((leaves[i].second.detach() - want).abs().max().item<double>(), trial.bf16 ? 2e-3 : 2e-5)
        << leaves[i].first;
  }
}

schedule::Schedule random_schedule(std::mt19937& random) {
  using schedule::BackwardPrefetch;
  using schedule::Schedule;
  Schedule schedule;
  switch (random() % 4) {
    case 0:
      schedule = Schedule::static_order(static_cast<int>(random() % 4));
      break;
    case 1:
      schedule = Schedule::delayed_release(1 + static_cast<int>(random() % 3));
      break;
    case 2:
      schedule = Schedule::on_demand();
      break;
    default:
      schedule = Schedule::fsdp1(random() % 2 == 0, static_cast<BackwardPrefetch>(random() % 3), random() % 2 == 0);
  }
  if (random() % 3 == 0) schedule.release = schedule::ReleaseOrder::kReshardFirst;
  if (random() % 3 == 0) schedule.threads = schedule::CommThreads::kUnified;
  if (random() % 4 == 0) schedule.max_bytes = static_cast<int64_t>(random() % 2000);
  return schedule;
}

AllocatorOptions random_allocator(std::mt19937& random) {
  const AllocatorOptions kinds[] = {
      AllocatorOptions::direct(),  AllocatorOptions::storage_resize(),    AllocatorOptions::rotary(),
      AllocatorOptions::rotary(2), AllocatorOptions::fixed_pool(1 << 20), AllocatorOptions::traced()};
  return kinds[random() % std::size(kinds)];
}

Trial random_trial(unsigned seed, Strategy strategy, int world, int num_microbatches, bool bf16) {
  std::mt19937 random(seed);
  Trial trial;
  trial.seed = seed;
  trial.tree = testing::random_tree(random);
  trial.num_microbatches = num_microbatches;
  trial.bf16 = bf16;
  std::vector<int> divisors;
  for (int d = 1; d <= world; ++d) {
    if (world % d == 0) divisors.push_back(d);
  }
  const bool two_axes = traits(strategy).mesh == MeshNeed::kShardAndReplicateAxis || random() % 3 == 0;
  trial.replicas = two_axes ? divisors[random() % divisors.size()] : 1;
  trial.shards = world / trial.replicas;
  trial.options.strategy = strategy;
  trial.options.precision = bf16 ? Precision::bf16() : Precision::fp32();
  trial.options.schedule = random_schedule(random);
  trial.options.allocator = random_allocator(random);
  trial.options.replica_reduce = random() % 2 == 0 ? ReduceTiming::kEveryMicrobatch : ReduceTiming::kLastMicrobatch;
  const auto granularity = static_cast<layout::Granularity>(random() % 4);
  trial.options.layout = {granularity, 4};
  if (random() % 3 == 0) trial.options.reshard_after_forward = random() % 2 == 0;
  if (random() % 4 == 0 && trial.shards % 2 == 0) trial.options.reshard_after_forward = 2;
  return trial;
}

unsigned base_seed() {
  const char* chosen = std::getenv("FSDP_TEST_SEED");
  return chosen != nullptr ? static_cast<unsigned>(std::stoul(chosen)) : std::random_device{}() % 1000000;
}

class Strategies : public ::testing::TestWithParam<int> {};

// To repeat a failure: FSDP_TEST_SEED=<seed of the message>.
TEST_P(Strategies, TrainLikeTheUnshardedModel) {
  unsigned seed = base_seed();
  for (const Strategy strategy : kStrategies) {
    for (const int num_microbatches : {1, 3}) {
      for (const bool bf16 : {false, true}) {
        const Trial trial = random_trial(seed, strategy, GetParam(), num_microbatches, bf16);
        SCOPED_TRACE(trial.text());
        const Result expected = train_unsharded(trial);
        ASSERT_NO_THROW(run_ranks(trial.world(), [&](const World& world) {
          SCOPED_TRACE(trial.text());
          train_sharded(world, trial, expected);
        }));
        if (HasFailure()) return;
        if (std::getenv("FSDP_TEST_SEED") == nullptr) ++seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Strategies, ::testing::Range(1, 9),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace fsdp::strategies_test
