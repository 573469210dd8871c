// Forwards and backwards of layers that are recorded once and replayed: the bits of plain calls, on one rank and on
// several, and every case in which a call has to run as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"
#include "fsdp/graph/graphed_function.h"
#include "tests/device/device_model.h"
#include "tests/device/fake_device.h"
#include "tests/device/fake_recorder.h"
#include "tests/support/ranks.h"

namespace fsdp::graph_test {
namespace {

using testing::DeviceModel;
using testing::fake_device;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::stream_clocks;

constexpr int kLayers = 3;
constexpr int64_t kWidth = 16;
constexpr int kSteps = 6;

enum class Calls { kPlain, kGraphed };

// Each layer through a GraphedFunction.
class LayeredModel {
 public:
  LayeredModel(Calls calls, c10::Device device) : calls_(calls), model_(kLayers, kWidth, at::TensorOptions(device)) {}

  DeviceModel& operator*() { return model_; }

  Unit shard(const Mesh& mesh, const ShardOptions& options) {
    for (const auto& layer : model_.layers) fully_shard(*layer, mesh, options);
    return fully_shard(model_, mesh, options);
  }

  at::Tensor forward(at::Tensor x) {
    if (graphs_.empty()) {
      for (const auto& layer : model_.layers) graphs_.emplace_back(layer->parameters());
    }
    x = model_.inlet->forward(x);
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const auto layer = model_.layers[i];
      const auto call = [layer](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{in[0] + layer->forward(in[0])};
      };
      x = calls_ == Calls::kPlain ? call({x})[0] : graphs_[i](call, {x})[0];
    }
    return model_.outlet->forward(x);
  }

  GraphCounters counters() const {
    GraphCounters sum;
    for (const GraphedFunction& graph : graphs_) {
      sum.eager += graph.counters().eager;
      sum.recorded += graph.counters().recorded;
      sum.replayed += graph.counters().replayed;
    }
    return sum;
  }

 private:
  Calls calls_;
  DeviceModel model_;
  std::vector<GraphedFunction> graphs_;
};

struct Plan {
  std::string name;
  std::optional<ShardOptions> options;  // none: unsharded
  int ranks = 1;
  int num_microbatches = 1;
};

struct Outcome {
  std::vector<float> losses;
  std::vector<at::Tensor> weights;
  GraphCounters counters;
  int64_t gathers = 0;
};

at::Tensor rows_of(int step, int microbatch, int rank, c10::Device device) {
  const auto generator = testing::generator(static_cast<uint64_t>(1000 * rank + 100 * step + microbatch));
  return torch::randn({6, kWidth}, generator).to(device);
}

Outcome train(const World& world, const Plan& plan, Calls calls) {
  const c10::Device device = fake_device(world.rank);
  const c10::DeviceGuard guard(device);
  LayeredModel model(calls, device);
  std::optional<Unit> root;
  if (plan.options) root = model.shard(Mesh::shard(world), *plan.options);
  const std::vector<at::Tensor> leaves = root ? parameters(*model) : (*model).parameters();
  torch::optim::SGD optimizer(leaves, torch::optim::SGDOptions(0.1).momentum(0.9));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < plan.num_microbatches; ++i) {
      const auto scope = root ? std::make_optional<Microbatch>(*root, i + 1 == plan.num_microbatches) : std::nullopt;
      const at::Tensor loss = model.forward(rows_of(step, i, world.rank, device)).square().mean();
      loss.backward();
      outcome.losses.push_back(loss.detach().cpu().item<float>());
    }
    optimizer.step();
    root ? zero_grad(*model) : (*model).zero_grad();
  }
  for (const at::Tensor& leaf : leaves) outcome.weights.push_back(leaf.detach().cpu());
  outcome.counters = model.counters();
  if (root) outcome.gathers = root->counters().gathers;
  return outcome;
}

ShardOptions copied(const AllocatorOptions& allocator) {
  ShardOptions options;
  options.whole_weights = WholeWeights::kCopied;
  options.allocator = allocator;
  return options;
}

ShardOptions traced(bool reshard_after_forward = true) {
  ShardOptions options;
  options.allocator = AllocatorOptions::traced();
  options.reshard_after_forward = reshard_after_forward;
  return options;
}

class Graphs : public ::testing::TestWithParam<Plan> {
 protected:
  const testing::FakeRecorders recorders_;
};

TEST_P(Graphs, GiveTheBitsOfPlainCalls) {
  stream_clocks().clear();
  std::vector<Outcome> expected(static_cast<size_t>(GetParam().ranks)), outcomes = expected;
  testing::run_ranks(GetParam().ranks, [&](const World& world) {
    expected[static_cast<size_t>(world.rank)] = train(world, GetParam(), Calls::kPlain);
    outcomes[static_cast<size_t>(world.rank)] = train(world, GetParam(), Calls::kGraphed);
  });
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].losses, expected[rank].losses);
    for (size_t i = 0; i < expected[rank].weights.size(); ++i)
      EXPECT_TRUE(at::equal(outcomes[rank].weights[i], expected[rank].weights[i])) << "weight " << i;
    EXPECT_EQ(outcomes[rank].gathers, expected[rank].gathers);
    EXPECT_GE(outcomes[rank].counters.recorded, kLayers);
    EXPECT_GE(outcomes[rank].counters.replayed, kLayers * 2);
  }
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Plans, Graphs,
                         ::testing::Values(Plan{"unsharded", {}}, Plan{"unsharded_accumulating", {}, 1, 3},
                                           Plan{"in_place", ShardOptions{}},
                                           Plan{"in_place_accumulating", ShardOptions{}, 1, 3},
                                           Plan{"copied", copied(AllocatorOptions::traced())},
                                           Plan{"copied_in_slabs", copied(AllocatorOptions::rotary())},
                                           Plan{"two_ranks", traced(), 2}, Plan{"three_ranks_kept", traced(false), 3},
                                           Plan{"two_ranks_accumulating", traced(), 2, 2}),
                         [](const auto& param) { return param.param.name; });

// Of one layer without sharding.
class GraphedCalls : public ::testing::Test {
 protected:
  std::vector<at::Tensor> call(const at::Tensor& x) {
    return graph_(
        [this](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{(in[0] * weight_).tanh()}; }, {x});
  }
  at::Tensor expected(const at::Tensor& x) { return (x * weight_.detach()).tanh(); }
  at::Tensor rows(uint64_t seed, int64_t count = 5) {
    return torch::randn({count}, testing::generator(seed)).to(fake_device());
  }
  // Beyond the calls that only warm up.
  void warm_up() {
    for (const bool needs_gradient : {false, true}) {
      for (int i = 0; i < GraphedFunction::kWarmUps; ++i)
        call(rows(1).requires_grad_(needs_gradient))[0].sum().backward();
    }
  }
  void TearDown() override { stream_clocks().clear(); }

  const testing::FakeRecorders recorders_;
  at::Tensor weight_ = rows(0).requires_grad_();
  GraphedFunction graph_{{weight_}};
};

TEST_F(GraphedCalls, AreRecordedOnceForEachKind) {
  for (const int64_t count : {5, 1, 5, 1}) {
    for (int i = 0; i < 3; ++i) call(rows(2, count))[0].sum().backward();
  }
  EXPECT_EQ(graph_.counters().recorded, 2);
  EXPECT_EQ(graph_.counters().eager, 2 * GraphedFunction::kWarmUps);
  EXPECT_EQ(graph_.counters().replayed, 4 * 3 - 2 * GraphedFunction::kWarmUps);
}

TEST_F(GraphedCalls, RunAsTheyAreWithoutGradients) {
  warm_up();
  const at::NoGradGuard no_grad;
  const at::Tensor x = rows(3);
  EXPECT_TRUE(at::equal(call(x)[0].cpu(), expected(x).cpu()));
  EXPECT_EQ(graph_.counters().recorded, 0);
}

// The second of two forwards must not write over what the first one's backward needs.
TEST_F(GraphedCalls, RunAsTheyAreWhileABackwardIsToCome) {
  warm_up();
  const at::Tensor first = rows(4).requires_grad_(), second = rows(5).requires_grad_();
  const at::Tensor y = call(first)[0], z = call(second)[0];
  EXPECT_EQ(graph_.counters().replayed, 1);
  (y.sum() + z.sum()).backward();
  const auto slope = [&](const at::Tensor& x) { return weight_.detach() * (1 - expected(x.detach()).square()); };
  EXPECT_TRUE(at::allclose(first.grad().cpu(), slope(first).cpu(), 1e-4, 1e-6))
      << first.grad().cpu() << slope(first).cpu();
  EXPECT_TRUE(at::allclose(second.grad().cpu(), slope(second).cpu(), 1e-4, 1e-6));
}

TEST_F(GraphedCalls, AreReplayedAgainAfterAForwardWithoutABackward) {
  warm_up();
  call(rows(6));
  const int64_t replayed = graph_.counters().replayed;
  call(rows(7))[0].sum().backward();
  EXPECT_EQ(graph_.counters().replayed, replayed + 1);
}

// Not in memory that the next replay writes.
TEST_F(GraphedCalls, GradientsOfLeavesLast) {
  warm_up();
  const at::Tensor first = rows(11).requires_grad_(), second = rows(12).requires_grad_();
  call(first)[0].sum().backward();
  const at::Tensor alone = first.grad().cpu().clone();
  call(second)[0].sum().backward();
  EXPECT_TRUE(at::equal(first.grad().cpu(), alone));
  call(first)[0].sum().backward();
  EXPECT_TRUE(at::allclose(first.grad().cpu(), 2 * alone));
  EXPECT_EQ(graph_.counters().replayed, 3);
}

TEST_F(GraphedCalls, GradientsThatWereAskedForLast) {
  warm_up();
  const at::Tensor x = rows(14).requires_grad_() * 2;
  const auto gradient = [&](const at::Tensor& of) { return torch::autograd::grad({call(of)[0].sum()}, {of})[0]; };
  const at::Tensor of_x = gradient(x), alone = of_x.cpu().clone();
  gradient(rows(15).requires_grad_() * 2);
  EXPECT_TRUE(at::equal(of_x.cpu(), alone));
  EXPECT_EQ(graph_.counters().replayed, 2);
}

TEST_F(GraphedCalls, RefuseABackwardWhoseActivationsAreGone) {
  warm_up();
  const at::Tensor loss = call(rows(8))[0].sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward({}, /*retain_graph=*/true);  // nothing came between
  call(rows(9))[0].sum().backward();
  try {
    loss.backward();
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("wrote over its activations"));
  }
}

TEST_F(GraphedCalls, HaveFirstDerivativesOnly) {
  warm_up();
  const at::Tensor x = rows(13).requires_grad_();
  const at::Tensor loss = call(x)[0].square().sum();
  EXPECT_EQ(graph_.counters().replayed, 1);
  const auto gradients = [&](bool create_graph) {
    return torch::autograd::grad({loss}, {x, weight_}, {}, /*retain_graph=*/true, create_graph);
  };
  const auto recorded = gradients(true), plain = gradients(false);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(recorded[i].detach().cpu(), plain[i].cpu())) << "gradient " << i;
    EXPECT_FALSE(plain[i].requires_grad()) << "gradient " << i;
    try {
      (loss + recorded[i].square().sum()).backward({}, /*retain_graph=*/true);
      ADD_FAILURE() << "gradient " << i;
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("[graph] got a gradient of a gradient"));
    }
  }
}

TEST_F(GraphedCalls, RefuseWhatWaitsForTheDevice) {
  const auto waits = [this](const std::vector<at::Tensor>& in) {
    const at::Tensor y = in[0] * weight_;
    return std::vector<at::Tensor>{y.sum().item<float>() > 0 ? y : -y};
  };
  for (int i = 0; i < GraphedFunction::kWarmUps; ++i) graph_(waits, {rows(10)});
  try {
    graph_(waits, {rows(10)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("this forward cannot be recorded: operation not permitted"));
  }
}

TEST(GraphedFunction, RunsAsItIsOnTheCpu) {
  GraphedFunction graph({});
  const at::Tensor x = at::ones({3}).requires_grad_();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(graph([](const auto& in) { return in; }, {x})[0], x));
  EXPECT_EQ(graph.counters().eager, 5);
  EXPECT_EQ(graph.counters().recorded, 0);
}

}  // namespace
}  // namespace fsdp::graph_test
