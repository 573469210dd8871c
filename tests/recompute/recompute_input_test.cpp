// What recompute_input leaves out is computed again to the bit, its memory is given back in between, and what reads it
// runs once; sharded or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::recompute_input_test {
namespace {

namespace nn = torch::nn;
using testing::batch;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using testing::share_of;
using torch::Tensor;

constexpr int64_t kWidth = 6;
constexpr uint64_t kSeed = 777;

enum class Way { kPlain, kRecomputed };

std::vector<Tensor> run(Way way, const MakeTensor& make, const std::vector<Tensor>& inputs, const UseTensor& use) {
  return way == Way::kPlain ? use(make(inputs)) : recompute_input(make, inputs, use);
}

// A norm and dropout before two projections, then a product of both before a third; residual around.
struct Gated : nn::Module {
  Gated() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    gate = register_module("gate", nn::Linear(kWidth, 2 * kWidth));
    up = register_module("up", nn::Linear(kWidth, 2 * kWidth));
    down = register_module("down", nn::Linear(2 * kWidth, kWidth));
  }
  Tensor forward(const Tensor& x, Way way) {
    const std::vector<Tensor> parts = run(
        way, [this](const auto& in) { return torch::dropout(norm(in[0]), 0.3, is_training()); }, {x},
        [this](const Tensor& normed) {
          return std::vector<Tensor>{gate(normed), up(normed)};
        });
    return x + run(
                   way, [](const auto& in) { return torch::sigmoid(in[0]) * in[1]; }, parts,
                   [this](const Tensor& product) { return std::vector<Tensor>{down(product)}; })[0];
  }
  nn::LayerNorm norm{nullptr};
  nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};

std::shared_ptr<Gated> make_gated() {
  return make_seeded(kSeed, [] { return std::make_shared<Gated>(); });
}

Tensor input() { return torch::randn({5, kWidth}, testing::generator(kSeed)).requires_grad_(); }

TEST(RecomputeInput, IsExactWithDropout) {
  const auto train = [](Way way) {
    const auto model = make_gated();
    const Tensor x = input();
    torch::manual_seed(kSeed);
    const Tensor output = model->forward(x, way);
    output.square().sum().backward();
    std::vector<Tensor> results{output.detach(), x.grad(), torch::rand({4})};
    for (const Tensor& parameter : model->parameters()) results.push_back(parameter.grad());
    return results;
  };
  const std::vector<Tensor> expected = train(Way::kPlain), actual = train(Way::kRecomputed);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "tensor " << i;
}

// Counts runs, and remembers the memory of what was made.
struct Watched {
  Tensor weight = torch::randn({kWidth, kWidth}, testing::generator(3)).requires_grad_();
  Tensor seen;
  int made = 0, used = 0;

  MakeTensor make() {
    return [this](const std::vector<Tensor>& in) {
      ++made;
      return in[0].sin();
    };
  }
  UseTensor use() {
    return [this](const Tensor& x) {
      ++used;
      seen = x.detach();
      return std::vector<Tensor>{x.mm(weight), x.mm(weight.t())};
    };
  }
};

TEST(RecomputeInput, MemoryIsGivenBackUntilTheBackwardAndUseRunsOnce) {
  Watched watched;
  const Tensor x = input();
  const std::vector<Tensor> outputs = recompute_input(watched.make(), {x}, watched.use());
  EXPECT_EQ(watched.seen.storage().nbytes(), 0U);
  EXPECT_EQ(watched.seen.storage().data(), nullptr);
  EXPECT_EQ(watched.made, 1);
  size_t bytes_in_backward = 0;
  x.register_hook([&](const Tensor&) { bytes_in_backward = watched.seen.storage().nbytes(); });
  (outputs[0].sum() + outputs[1].square().sum()).backward();
  EXPECT_EQ(bytes_in_backward, 5 * kWidth * sizeof(float));
  EXPECT_EQ(watched.made, 2);
  EXPECT_EQ(watched.used, 1);
}

TEST(RecomputeInput, WhatTheSecondRunMadeIsFreedWithTheGraph) {
  Watched watched;
  const Tensor x = input();
  c10::weak_intrusive_ptr<c10::StorageImpl> memory((c10::intrusive_ptr<c10::StorageImpl>()));
  {
    const std::vector<Tensor> outputs = recompute_input(watched.make(), {x}, watched.use());
    memory = watched.seen.storage().getWeakStorageImpl();
    watched.seen = Tensor();
    EXPECT_FALSE(memory.expired());
    (outputs[0].sum() + outputs[1].sum()).backward();
    // The graph is still there, but what it kept is gone.
    EXPECT_TRUE(memory.expired());
  }
}

TEST(RecomputeInput, ABackwardMayBeRepeated) {
  Watched watched;
  const Tensor x = input(), again = input();
  const Tensor loss = recompute_input(watched.make(), {x}, watched.use())[0].square().sum();
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone(), of_weight = watched.weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(torch::equal(x.grad(), 2 * once));
  EXPECT_TRUE(torch::equal(watched.weight.grad(), 2 * of_weight));
  again.sin().mm(watched.weight.detach()).square().sum().backward();
  EXPECT_TRUE(torch::allclose(once, again.grad()));
}

TEST(RecomputeInput, IsForPlainBackwards) {
  Watched watched;
  const Tensor x = input(), again = input();
  const Tensor loss = recompute_input(watched.make(), {x}, watched.use())[0].square().sum();
  EXPECT_THAT(error_of([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
              HasSubstr("[recompute_input] got a backward that records a graph (create_graph), expected first deriv"));
  EXPECT_EQ(watched.made, 1);
  EXPECT_THAT(
      error_of([&] { torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true); }),
      HasSubstr("[recompute_input] got a backward for the gradients of certain tensors (torch::autograd::grad"));
  EXPECT_FALSE(watched.weight.grad().defined());
  loss.backward();
  again.sin().mm(watched.weight.detach()).square().sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), again.grad()));
}

TEST(RecomputeInput, OneOutputUsedAndOnlyTheWeightAskedFor) {
  for (const size_t output : {0U, 1U}) {
    Watched watched, plain;
    const Tensor x = input();
    const Tensor loss = recompute_input(watched.make(), {x}, watched.use())[output].square().sum();
    const Tensor expected = plain.use()(plain.make()({x}))[output].square().sum();
    EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {watched.weight})[0],
                             torch::autograd::grad({expected}, {plain.weight})[0]));
  }
}

TEST(RecomputeInput, UndefinedInputsPassThrough) {
  const Tensor x = input(), weight = torch::randn({kWidth, kWidth}).requires_grad_();
  const MakeTensor make = [](const std::vector<Tensor>& in) {
    EXPECT_FALSE(in[0].defined());
    return in[1] * 2;
  };
  recompute_input(make, {Tensor(), x},
                  [&](const Tensor& y) {
                    return std::vector<Tensor>{y.mm(weight), Tensor()};
                  })[0]
      .sum()
      .backward();
  EXPECT_TRUE(torch::equal(weight.grad(), (x * 2).t().mm(torch::ones({5, kWidth})).detach()));
}

TEST(RecomputeInput, WithoutGradientsItIsAPlainCall) {
  Watched watched;
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> outputs = recompute_input(watched.make(), {input()}, watched.use());
  EXPECT_FALSE(outputs[0].requires_grad());
  EXPECT_EQ(watched.seen.storage().nbytes(), 5 * kWidth * sizeof(float));
}

TEST(RecomputeInput, InsideARegionThatIsComputedAgain) {
  const auto model = make_gated();
  model->eval();
  const Tensor x = input(), plain = input();
  recompute([&](const Tensor& y) { return model->forward(y, Way::kRecomputed); }, x).square().sum().backward();
  model->forward(plain, Way::kPlain).square().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), plain.grad()));
}

TEST(RecomputeInput, MemoryThatIsNotItsOwnIsRefused) {
  const UseTensor use = [](const Tensor& x) { return std::vector<Tensor>{x.exp()}; };
  const Tensor kept = torch::ones({kWidth});
  for (const MakeTensor& make :
       {MakeTensor([](const auto& in) { return in[0].detach(); }), MakeTensor([](const auto& in) { return in[0].t(); }),
        MakeTensor([&](const auto&) { return kept; })}) {
    EXPECT_THAT(error_of([&] { recompute_input(make, {input()}, use); }),
                HasSubstr("memory that something else holds"));
  }
  EXPECT_THAT(error_of([] {
                recompute_input([](const auto& in) { return in[0].exp(); }, {input()},
                                [](const Tensor& x) { return std::vector<Tensor>{x.t()}; });
              }),
              HasSubstr("memory of the tensor that it got"));
  EXPECT_THAT(error_of([&] { recompute_input({}, {input()}, use); }), HasSubstr("empty function"));
  EXPECT_THAT(error_of([&] { recompute_input([](const auto&) { return Tensor(); }, {input()}, use); }),
              HasSubstr("undefined"));
}

TEST(RecomputeInput, ASecondRunThatMakesLessIsRefused) {
  int runs = 0;
  const Tensor weight = torch::ones({kWidth, kWidth}).requires_grad_();
  const MakeTensor make = [&](const auto& in) { return ++runs == 1 ? in[0].exp() : in[0].narrow(0, 0, 2).exp(); };
  const Tensor loss =
      recompute_input(make, {input()}, [&](const Tensor& x) { return std::vector<Tensor>{x.mm(weight)}; })[0].sum();
  EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("as much memory as the first"));
}

// ---- sharded

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(std::make_shared<Gated>());
    outlet = register_module("outlet", nn::Linear(kWidth, 2));
    eval();
  }
  Tensor forward(Tensor x, Way way) {
    for (const auto& layer : *layers) x = layer->as<Gated>()->forward(x, way);
    return outlet(x);
  }
  nn::ModuleList layers{nullptr};
  nn::Linear outlet{nullptr};
};

// Every unit is gathered as often as without.
TEST(ShardedRecomputeInput, TrainsLikeTheUnshardedModelAndGathersNothingMore) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const World& world) {
      const auto make = [] { return std::make_shared<Net>(); };
      const auto plain = make_seeded(kSeed, make);
      torch::optim::SGD plain_optimizer(plain->parameters(), 0.05);
      std::map<Way, int64_t> gathers;
      std::map<Way, std::shared_ptr<Net>> nets;
      std::map<Way, Unit> roots;
      std::map<Way, SGD> optimizers;
      for (const Way way : {Way::kPlain, Way::kRecomputed}) {
        const auto net = nets[way] = make_seeded(kSeed, make);
        for (const auto& layer : *net->layers) fully_shard(*layer, Mesh::shard(world));
        roots.emplace(way, fully_shard(*net, Mesh::shard(world)));
        optimizers.emplace(way, SGD(parameters(*net), SGDOptions{.lr = 0.05}));
      }
      for (uint64_t step = 0; step < 4; ++step) {
        const Tensor rows = batch(step, 12, kWidth);
        plain_optimizer.zero_grad();
        plain->forward(rows, Way::kPlain).square().mean().backward();
        for (auto& [way, net] : nets) {
          zero_grad(*net);
          roots.at(way).reset_counters();
          net->forward(share_of(world, rows), way).square().mean().backward();
          gathers[way] = roots.at(way).counters().gathers;
          expect_same_gradients(*net, *plain);
          optimizers.at(way).step();
        }
        plain_optimizer.step();
        for (auto& [way, net] : nets) expect_same_weights(*net, *plain);
      }
      EXPECT_EQ(gathers[Way::kRecomputed], gathers[Way::kPlain]);
    });
  }
}

}  // namespace
}  // namespace fsdp::recompute_input_test
