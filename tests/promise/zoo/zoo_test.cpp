// Every model of the zoo, sharded, does what it does unsharded: in training, between steps, and when something fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/promise/zoo/zoo.h"
#include "tests/support/ranks.h"

namespace fsdp::zoo_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::AnyModule;
using testing::error_of;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using testing::TurnGathers;
using testing::ZooCase;
using testing::ZooModel;
using testing::ZooRoot;

constexpr int kSteps = 4;
constexpr int64_t kRows = 12;
constexpr uint64_t kModelSeed = 71993;
constexpr Strategy kStrategies[] = {Strategy::kOptimGradsParams, Strategy::kOptimGrads};

// ---- modules of either kind

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

NamedTensors weights_of(const AnyModule& module) {
  NamedTensors list;
  if (const auto* plain = std::get_if<std::shared_ptr<nn::Module>>(&module)) {
    for (const auto& item : (*plain)->named_parameters()) list.emplace_back(item.key(), item.value());
  } else {
    for (const auto& item : std::get<torch::jit::Module>(module).named_parameters())
      list.emplace_back(item.name, item.value);
  }
  std::set<const c10::TensorImpl*> seen;
  std::erase_if(list, [&](const auto& item) { return !seen.insert(item.second.unsafeGetTensorImpl()).second; });
  return list;
}

NamedTensors leaves_of(const AnyModule& module) {
  const auto* plain = std::get_if<std::shared_ptr<nn::Module>>(&module);
  return plain != nullptr ? named_parameters(**plain) : named_parameters(std::get<torch::jit::Module>(module));
}

void set_training(AnyModule& module, bool training) {
  if (const auto* plain = std::get_if<std::shared_ptr<nn::Module>>(&module)) {
    (*plain)->train(training);
  } else {
    std::get<torch::jit::Module>(module).train(training);
  }
}

Unit shard(AnyModule& module, const Mesh& mesh, const ShardOptions& options) {
  const auto* plain = std::get_if<std::shared_ptr<nn::Module>>(&module);
  return plain != nullptr ? fully_shard(**plain, mesh, options)
                          : fully_shard(std::get<torch::jit::Module>(module), mesh, options);
}

std::vector<torch::Tensor> without_names(const NamedTensors& named) {
  std::vector<torch::Tensor> list;
  for (const auto& [name, tensor] : named) list.push_back(tensor);
  return list;
}

// Bytes of the weights of `module` that are not in `taken`, with room for the alignment of tensors and of the shards of
// two groups.
int64_t gathered_bytes(const AnyModule& module, std::set<const c10::TensorImpl*>& taken, int ranks) {
  int64_t bytes = 0;
  for (const auto& [name, weight] : weights_of(module)) {
    if (taken.insert(weight.unsafeGetTensorImpl()).second) bytes += static_cast<int64_t>(weight.nbytes()) + 16;
  }
  return bytes == 0 ? 0 : bytes + int64_t{2} * 16 * ranks;
}

// ---- one model, sharded or not, in training

// What a turn does before its optimizer's step.
enum class Passes { kOne, kThreeMicrobatches, kTwoForwardsOneBackward };

struct Run {
  explicit Run(const ZooCase& zoo_case) : model(make_seeded(kModelSeed, zoo_case.make)) {}

  void make_optimizers(const std::function<NamedTensors(const AnyModule&)>& tensors_of) {
    const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
    for (const ZooRoot& root : model.roots) {
      optimizers.push_back(std::make_unique<torch::optim::SGD>(without_names(tensors_of(root.module)), options));
    }
  }

  void finish_turn(int turn) {
    optimizers[static_cast<size_t>(turn)]->step();
    for (const auto& optimizer : optimizers) optimizer->zero_grad();
  }

  ZooModel model;
  std::vector<Unit> roots;  // empty where nothing is sharded
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
};

torch::Tensor backward_of(Run& run, int turn, Passes passes, const std::function<torch::Tensor(int)>& rows) {
  const auto& loss_of = run.model.loss;
  if (passes != Passes::kThreeMicrobatches) {
    const bool twice = passes == Passes::kTwoForwardsOneBackward;
    torch::Tensor loss = loss_of(rows(0), turn);
    if (twice) loss = (loss + loss_of(rows(1), turn)) / 2;
    loss.backward();
    return loss.detach();
  }
  torch::Tensor total;
  for (int i = 0; i < 3; ++i) {
    std::optional<Microbatch> scope;
    if (!run.roots.empty()) scope.emplace(run.roots[static_cast<size_t>(turn)], /*is_last=*/i == 2);
    const torch::Tensor loss = loss_of(rows(i), turn) / 3;
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

// The sharded run of this rank beside an unsharded one that does the same things.
class Pair {
 public:
  Pair(const World& world, const ZooCase& zoo_case, Strategy strategy)
      : world_(world), case_(zoo_case), strategy_(strategy), sharded_(zoo_case), plain_(zoo_case) {
    std::set<const c10::TensorImpl*> taken;
    ShardOptions options;
    options.strategy = strategy;
    for (ZooRoot& root : sharded_.model.roots) {
      options.unused = case_.unused;
      for (AnyModule& unit : root.units) {
        largest_unit_ = std::max(largest_unit_, gathered_bytes(unit, taken, world.size));
        shard(unit, Mesh::shard(world), options);
      }
      options.unused = UnusedUnit::kSkip;
      root_bytes_ += gathered_bytes(root.module, taken, world.size);
      sharded_.roots.push_back(shard(root.module, Mesh::shard(world), options));
    }
    sharded_.make_optimizers(leaves_of);
    plain_.make_optimizers(weights_of);
  }

  void step(Passes passes = Passes::kOne) {
    ++step_;
    sharded_.roots[0].reset_counters();
    for (int turn = 0; turn < num_turns(); ++turn) {
      begin_turn(turn);
      const auto rows_of_batch = [&](int i) { return batch(static_cast<uint64_t>(1000 * step_ + 10 * turn + i)); };
      const torch::Tensor mine = backward_of(sharded_, turn, passes, [&](int i) { return share_of(rows_of_batch(i)); });
      const torch::Tensor expected = backward_of(plain_, turn, passes, rows_of_batch);
      expect_close(sum_over_ranks(world_, mine) / world_.size, expected, c10::str("loss of turn ", turn));
      for (Run* run : {&sharded_, &plain_}) run->finish_turn(turn);
      expect_same_weights();
    }
    EXPECT_EQ(counters().resident_unsharded_bytes, 0) << where();
  }

  // The forward ends with the program's exception, in both runs.
  void fail_in_forward() {
    begin_turn(0);
    const torch::Tensor broken = case_.break_rows(batch(99));
    EXPECT_THROW(sharded_.model.loss(share_of(broken), 0), std::exception) << where();
    EXPECT_THROW(plain_.model.loss(broken, 0), std::exception) << where();
  }

  void evaluate() {
    for (Run* run : {&sharded_, &plain_}) {
      for (ZooRoot& root : run->model.roots) set_training(root.module, false);
    }
    const torch::Tensor rows = share_of(batch(77));
    {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) expect_close(sharded_.model.predict(rows), plain_.model.predict(rows), "no grad");
    }
    if (case_.inference_mode) {
      const c10::InferenceMode inference;
      for (int i = 0; i < 2; ++i) expect_close(sharded_.model.predict(rows), plain_.model.predict(rows), "inference");
    }
    for (Run* run : {&sharded_, &plain_}) {
      for (ZooRoot& root : run->model.roots) set_training(root.module, true);
    }
  }

  // M(2U - k) of the step before, and for ZeRO-2 M U.
  void expect_gathers(int64_t microbatches) {
    if (world_.size == 1) return;
    if (testing::one_copy_of_weights()) {
      EXPECT_EQ(counters().gathers, 0) << where();
      return;
    }
    int64_t at_least = 0;
    int64_t at_most = 0;
    for (const TurnGathers& turn : case_.turns) {
      const int64_t kept = strategy_ == Strategy::kOptimGradsParams ? turn.kept : turn.units;
      const int64_t needed = 2 * turn.units - kept + turn.by_inner_backward;
      at_least += microbatches * needed;
      at_most += microbatches * (needed + turn.wrong_guesses);
    }
    EXPECT_GE(counters().gathers, at_least) << where() << "; k counts " << case_.why_kept;
    EXPECT_LE(counters().gathers, at_most) << where() << "; k counts " << case_.why_kept;
  }

  void expect_peak() {
    if (world_.size == 1 || strategy_ != Strategy::kOptimGradsParams || testing::one_copy_of_weights()) return;
    EXPECT_GT(counters().peak_unsharded_bytes, 0) << where();
    EXPECT_LE(counters().peak_unsharded_bytes, root_bytes_ + case_.units_at_once * largest_unit_) << where();
  }

 private:
  int num_turns() const { return static_cast<int>(sharded_.model.roots.size()); }
  Counters counters() const { return sharded_.roots[0].counters(); }

  std::string where() const {
    return c10::str(case_.name, ", ", name(strategy_), ", rank ", world_.rank, " of ", world_.size, ", step ", step_);
  }

  void begin_turn(int turn) {
    for (Run* run : {&sharded_, &plain_}) {
      if (run->model.before_turn) run->model.before_turn(step_, turn);
    }
  }

  torch::Tensor batch(uint64_t seed) const {
    const torch::Tensor noise = torch::randn({kRows, case_.features}, testing::generator(seed)).to(case_.dtype);
    return case_.make_rows ? case_.make_rows(noise) : noise;
  }

  torch::Tensor share_of(const torch::Tensor& rows) const {
    return case_.same_rows ? rows : testing::share_of(world_, rows);
  }

  void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) const {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << where() << ", " << what;
    if (actual.numel() == 0) return;
    const double scale = 1 + expected.detach().abs().max().item<double>();
    const double difference = (actual.detach() - expected.detach()).abs().max().item<double>();
    const double tolerance = (case_.dtype == torch::kDouble ? 1e-12 : 1e-5) * scale;
    EXPECT_TRUE(difference <= tolerance) << where() << ", " << what << ": differs by " << difference;
  }

  void expect_same_weights() {
    for (size_t i = 0; i < sharded_.model.roots.size(); ++i) {
      const NamedTensors leaves = leaves_of(sharded_.model.roots[i].module);
      const NamedTensors expected = weights_of(plain_.model.roots[i].module);
      ASSERT_EQ(leaves.size(), expected.size()) << where();
      for (size_t j = 0; j < leaves.size(); ++j) {
        EXPECT_EQ(leaves[j].first, expected[j].first) << where();
        const LocalRange range = local_range(leaves[j].second);
        expect_close(leaves[j].second, expected[j].second.detach().flatten().slice(0, range.begin, range.end),
                     leaves[j].first);
      }
    }
  }

  World world_;
  ZooCase case_;
  Strategy strategy_;
  Run sharded_;
  Run plain_;
  int64_t root_bytes_ = 0;
  int64_t largest_unit_ = 0;
  int step_ = -1;
};

// ---- the tests, one for each model

class Zoo : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(const std::vector<int>& worlds, const std::function<void(Pair&)>& body) {
    const ZooCase& zoo_case = testing::zoo_case(GetParam());
    for (const int ranks : worlds) {
      for (const Strategy strategy : kStrategies) {
        run_ranks(ranks, [&](const World& world) {
          Pair pair(world, zoo_case, strategy);
          body(pair);
        });
      }
    }
  }
};

TEST_P(Zoo, TrainsLikeTheUnshardedModel) {
  std::vector<int> worlds{1, 2};
  for (const int ranks : testing::zoo_case(GetParam()).more_worlds) worlds.push_back(ranks);
  run(worlds, [](Pair& pair) {
    for (int i = 0; i < kSteps; ++i) pair.step();
    pair.expect_gathers(/*microbatches=*/1);
    pair.expect_peak();
  });
}

TEST_P(Zoo, EvaluatesBetweenSteps) {
  run({1, 2}, [](Pair& pair) {
    pair.evaluate();
    for (int i = 0; i < 2; ++i) {
      pair.step();
      pair.evaluate();
    }
    pair.step();
  });
}

TEST_P(Zoo, AccumulatesGradients) {
  run({2}, [](Pair& pair) {
    for (int i = 0; i < 2; ++i) pair.step(Passes::kThreeMicrobatches);
    pair.expect_gathers(/*microbatches=*/3);
    pair.step();
  });
}

TEST_P(Zoo, AStepAfterAnExceptionInForwardIsClean) {
  run({1, 2}, [](Pair& pair) {
    pair.step();
    pair.fail_in_forward();
    for (int i = 0; i < 2; ++i) pair.step();
  });
}

TEST_P(Zoo, TwoForwardsBeforeOneBackward) {
  run({1, 2}, [](Pair& pair) {
    pair.step();
    pair.step(Passes::kTwoForwardsOneBackward);
    pair.step();
  });
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const ZooCase& zoo_case : testing::zoo()) list.push_back(zoo_case.name);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

// ---- at the edges

// A root that was gathered ahead is entered when it is read, like any unit, or the recorded order lacks it next time.
TEST(ZooEdges, ARootThatIsReadLastCostsTheSameInEveryStep) {
  run_ranks(2, [](const World& world) {
    nn::Sequential module = make_seeded(kModelSeed, [] {
      return nn::Sequential(nn::Linear(5, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 2));
    });
    for (const size_t i : {0U, 2U}) fully_shard(*module->ptr(i), Mesh::shard(world));
    Unit root = fully_shard(*module, Mesh::shard(world));
    SGD optimizer(parameters(*module), {.lr = 0.05});
    for (int step = 0; step < 5; ++step) {
      root.reset_counters();
      const torch::Tensor rows = torch::randn({4, 5}, testing::generator(static_cast<uint64_t>(step)));
      module->forward(rows).square().mean().backward();
      optimizer.step();
      zero_grad(*module);
      // U = 3. k = 2: the root is read last; the backward of the first layer needs no weight, which the first step has
      // yet to learn.
      EXPECT_EQ(root.counters().gathers, 2 * 3 - (step == 0 ? 1 : 2)) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace fsdp::zoo_test
