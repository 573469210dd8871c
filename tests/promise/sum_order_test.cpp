// SumOrder::kTree: gradients, norms, weights have the same bits on any number of ranks, and gradients those of a tree
// that the test adds up by itself over an unsharded model.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::sum_order_test {
namespace {

using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::run_ranks;

constexpr int kSteps = 3;
constexpr int64_t kFeatures = 24, kRows = 3;
constexpr double kMaxNorm = 0.05;  // clips
constexpr unsigned kSeed = 11;

// Large enough that weights are cut, with a weight that is read twice.
struct Model : torch::nn::Module {
  Model() {
    inlet = register_module("inlet", torch::nn::Linear(kFeatures, 40));
    middle = register_module("middle", torch::nn::Linear(40, 40));
    outlet = register_module("outlet", torch::nn::Linear(40, 7));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    return outlet(torch::tanh(middle(torch::tanh(middle(torch::tanh(inlet(rows)))))));
  }
  torch::nn::Linear inlet{nullptr}, middle{nullptr}, outlet{nullptr};
};

std::shared_ptr<Model> make_model() {
  return testing::make_seeded(kSeed, [] { return std::make_shared<Model>(); });
}

struct Shape {
  Strategy strategy;
  int shards;
  int replicas = 1;

  int world() const { return shards * replicas; }
  std::string text() const { return c10::str(name(strategy), " on ", replicas, " x ", shards, " ranks, seed ", kSeed); }
};

torch::Tensor rows_of(int step, int64_t leaf, at::ScalarType dtype) {
  auto generator = testing::generator(static_cast<uint64_t>(1000 * step + leaf));
  return torch::randn({kRows, kFeatures}, generator).to(dtype);
}

torch::Tensor loss_of(Model& model, int step, int64_t leaf, at::ScalarType dtype) {
  return model.forward(rows_of(step, leaf, dtype)).to(torch::kFloat).square().sum();
}

// Of the first step, into the .grad of `model`: each leaf by itself, then neighbours, then pairs.
void add_up_tree(Model& model, int64_t leaves, at::ScalarType dtype) {
  const auto computing = make_model();
  computing->to(dtype);
  std::vector<std::vector<torch::Tensor>> sums;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    loss_of(*computing, 0, leaf, dtype).backward();
    auto& gradients = sums.emplace_back();
    for (const torch::Tensor& parameter : computing->parameters())
      gradients.push_back(parameter.grad().to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true));
    computing->zero_grad();
  }
  while (sums.size() > 1) {
    std::vector<std::vector<torch::Tensor>> pairs;
    for (size_t i = 0; i < sums.size(); i += 2) {
      pairs.push_back(sums[i]);
      for (size_t p = 0; i + 1 < sums.size() && p < sums[i].size(); ++p) pairs.back()[p] = sums[i][p] + sums[i + 1][p];
    }
    sums = pairs;
  }
  auto parameters = model.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) parameters[p].mutable_grad() = sums[0][p];
}

// What a run is told by.
struct Outcome {
  std::vector<float> norms;
  std::shared_ptr<Model> weights;  // whole
};

struct Run {
  Shape shape;
  int64_t leaves;
  ShardOptions options = {};

  at::ScalarType dtype() const { return options.precision.param.value_or(at::kFloat); }
};

void take_weights(const Unit& root, const Model& from, Model& to) {
  const FullParameters whole = full_parameters(root);
  const torch::NoGradGuard no_grad;
  auto target = to.parameters();
  const auto source = from.parameters();
  for (size_t i = 0; i < target.size(); ++i) target[i].copy_(source[i]);
}

// `compare` sees the gradients of the first step, and the weights of the last.
template <class Gradients>
Outcome train(const Run& run, const World& world, const Gradients& compare) {
  const Shape& shape = run.shape;
  const Mesh mesh(world, {{"replicate", shape.replicas}, {"shard", shape.shards}});
  ShardOptions options = run.options;
  options.strategy = shape.strategy;
  const auto model = make_model();
  for (torch::nn::Module* part :
       {static_cast<torch::nn::Module*>(&*model->inlet), static_cast<torch::nn::Module*>(&*model->middle)})
    fully_shard(*part, mesh, options);
  Unit root = fully_shard(*model, mesh, options);
  root.set_gradient_divide_factor(1);
  AdamW optimizer(parameters(*model), {.lr = 1e-2});
  const int64_t microbatches = run.leaves / shape.world();
  const SumTreeOrder order(shape.strategy, shape.shards, shape.replicas, microbatches);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    for (int64_t micro = 0; micro < microbatches; ++micro) {
      const Microbatch scope(root, micro + 1 == microbatches);
      loss_of(*model, step, order.leaf_of(world.rank, micro), run.dtype()).backward();
    }
    if (step == 0) compare(*model);
    const GradNorm norm = grad_norm(parameters(*model), kMaxNorm);
    outcome.norms.push_back(norm.value());
    optimizer.step(norm.factor);
    zero_grad(*model);
  }
  outcome.weights = make_model();
  take_weights(root, *model, *outcome.weights);
  return outcome;
}

ShardOptions tree_options(bool bf16) {
  ShardOptions options;
  options.sum_order = SumOrder::kTree;
  if (bf16) options.precision = Precision::bf16();
  return options;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  if (a.norms != b.norms) return false;
  const auto mine = a.weights->parameters(), other = b.weights->parameters();
  for (size_t i = 0; i < mine.size(); ++i)
    if (!torch::equal(mine[i], other[i])) return false;
  return true;
}

// Of rank 0.
Outcome train_on_ranks(
    const Run& run, const std::function<void(const Model&)>& compare = [](const Model&) {}) {
  Outcome outcome;
  run_ranks(run.shape.world(), [&](const World& world) {
    const Outcome mine = train(run, world, compare);
    if (world.rank == 0) outcome = mine;
  });
  return outcome;
}

void check_worlds(const std::vector<Shape>& shapes, int64_t leaves, bool bf16) {
  const Run alone{{Strategy::kOptimGradsParams, 1}, leaves, tree_options(bf16)};
  Model tree = *make_model();
  add_up_tree(tree, leaves, alone.dtype());
  const auto has_gradients_of_tree = [&](const Model& model) { expect_same_gradients(model, tree, /*tolerance=*/0); };
  const Outcome expected = train_on_ranks(alone, has_gradients_of_tree);
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(c10::str(shape.text(), ", ", leaves, " leaves, ", bf16 ? "bf16" : "fp32"));
    ASSERT_TRUE(SumTreeOrder(shape.strategy, shape.shards, shape.replicas, leaves / shape.world()).is_exact());
    const Outcome actual = train_on_ranks({shape, leaves, tree_options(bf16)}, has_gradients_of_tree);
    EXPECT_TRUE(same_bits(actual, expected));
  }
}

TEST(SumOrder, OfATreeGivesTheSameBitsOnAnyNumberOfRanks) {
  std::vector<Shape> shapes;
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams})
    for (const int world : {1, 2, 4, 8}) shapes.push_back({strategy, world});
  for (const bool bf16 : {false, true}) check_worlds(shapes, 8, bf16);
}

TEST(SumOrder, OfATreeHoldsOverReplicas) {
  std::vector<Shape> shapes = {{Strategy::kNoShard, 2, 2}, {Strategy::kOptim, 2, 2}};
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim})
    for (const Shape& shape : {Shape{strategy, 2, 2}, Shape{strategy, 1, 4}, Shape{strategy, 4, 2}})
      shapes.push_back(shape);
  check_worlds(shapes, 16, /*bf16=*/false);
}

TEST(SumOrder, OfATreeWhoseLastStageIsNoPowerOfTwo) {
  check_worlds({{Strategy::kOptimGradsParams, 2}, {Strategy::kOptimGrads, 4}, {Strategy::kNoShard, 1}}, 12,
               /*bf16=*/false);
}

// What the tests above would not see otherwise.
TEST(SumOrder, AsTheyComeGivesOtherBits) {
  const Outcome alone = train_on_ranks({{Strategy::kOptimGradsParams, 1}, 8});
  const Outcome four = train_on_ranks({{Strategy::kOptimGradsParams, 4}, 8});
  EXPECT_FALSE(same_bits(alone, four));
}

// Gradients that wait are none of the next step, and what a program takes away counts no more.
TEST(SumOrder, OfATreeForgetsWhatIsTakenAway) {
  run_ranks(2, [](const World& world) {
    for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGradsParams}) {
      ShardOptions options = tree_options(/*bf16=*/false);
      options.strategy = strategy;
      const auto model = make_model();
      Unit root = fully_shard(*model, Mesh::shard(world), options);
      const auto backward = [&](int64_t leaf, bool is_last) {
        const Microbatch scope(root, is_last);
        loss_of(*model, 0, 2 * leaf + world.rank, at::kFloat).backward();
      };
      const auto leaves = parameters(*model);
      backward(0, /*is_last=*/true);
      std::vector<torch::Tensor> expected;
      for (const torch::Tensor& leaf : leaves) expected.push_back(leaf.grad().clone());
      zero_grad(*model);
      backward(1, /*is_last=*/false);
      backward(2, /*is_last=*/false);
      backward(3, /*is_last=*/false);
      zero_grad(*model);
      backward(0, /*is_last=*/true);
      for (size_t i = 0; i < leaves.size(); ++i)
        EXPECT_TRUE(torch::equal(leaves[i].grad(), expected[i])) << name(strategy);
    }
  });
}

TEST(SumOrder, OfATreeRefusesWhatRoundsOnItsWay) {
  run_ranks(2, [](const World& world) {
    const auto refusal = [&](const std::function<void(ShardOptions&)>& change) {
      ShardOptions options = tree_options(/*bf16=*/true);
      change(options);
      const auto model = make_model();
      return error_of([&] { fully_shard(*model, Mesh::shard(world), options); });
    };
    for (const auto member : {&Precision::reduce, &Precision::accumulate, &Precision::main_grad}) {
      const std::string text = refusal([&](ShardOptions& options) { options.precision.*member = torch::kBFloat16; });
      EXPECT_NE(text.find("got kTree with gradients in BFloat16 beside main weights in Float"), std::string::npos)
          << text;
    }
    const std::string text =
        refusal([](ShardOptions& options) { options.replica_reduce = ReduceTiming::kEveryMicrobatch; });
    EXPECT_NE(text.find("got kTree with replica_reduce kEveryMicrobatch"), std::string::npos) << text;
    const auto narrow = make_model();
    narrow->to(torch::kBFloat16);
    EXPECT_NE(error_of([&] {
                fully_shard(*narrow, Mesh::shard(world), tree_options(/*bf16=*/false));
              }).find("sums of gradients in BFloat16, expected fp32 or fp64"),
              std::string::npos);
    for (const torch::Tensor& frozen : narrow->parameters()) frozen.set_requires_grad(false);
    EXPECT_EQ(error_of([&] { fully_shard(*narrow, Mesh::shard(world), tree_options(/*bf16=*/true)); }), "no error");
  });
}

}  // namespace
}  // namespace fsdp::sum_order_test
