// A region that runs twice computes what it computes when it runs once, to the bit, and leaves everything around it as
// it was; sharded or not.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::recompute_test {
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
constexpr uint64_t kSeed = 4242;

struct Layer : nn::Module {
  Layer() {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  }
  Tensor forward(const Tensor& x) { return torch::dropout(torch::tanh(linear(norm(x))), 0.4, is_training()) + x; }
  nn::Linear linear{nullptr};
  nn::LayerNorm norm{nullptr};
};

std::vector<std::shared_ptr<Layer>> make_layers(int count) {
  return make_seeded(kSeed, [&] {
    std::vector<std::shared_ptr<Layer>> layers;
    for (int i = 0; i < count; ++i) layers.push_back(std::make_shared<Layer>());
    return layers;
  });
}

std::vector<TensorFunction> functions_of(const std::vector<std::shared_ptr<Layer>>& layers) {
  std::vector<TensorFunction> functions;
  for (const auto& layer : layers) functions.emplace_back([layer](const Tensor& x) { return layer->forward(x); });
  return functions;
}

Tensor input(bool requires_grad = true) {
  return torch::randn({5, kWidth}, testing::generator(kSeed)).requires_grad_(requires_grad);
}

// What a forward and a backward leave behind.
struct Outcome {
  Tensor output;
  std::vector<Tensor> gradients;  // of the input, then of all parameters
  Tensor next_random;
};

Outcome run(const std::function<Tensor(const std::vector<TensorFunction>&, const Tensor&)>& apply, int num_layers = 3,
            bool input_needs_gradient = true) {
  const auto layers = make_layers(num_layers);
  const Tensor x = input(input_needs_gradient);
  torch::manual_seed(kSeed);
  const Tensor output = apply(functions_of(layers), x);
  output.square().sum().backward();
  Outcome outcome{output.detach(), {x.grad()}, torch::rand({4})};
  for (const auto& layer : layers) {
    for (const Tensor& parameter : layer->parameters()) outcome.gradients.push_back(parameter.grad());
  }
  return outcome;
}

Tensor plain(const std::vector<TensorFunction>& layers, Tensor x) {
  for (const TensorFunction& layer : layers) x = layer(x);
  return x;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(torch::equal(actual.output, expected.output));
  EXPECT_TRUE(torch::equal(actual.next_random, expected.next_random));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < actual.gradients.size(); ++i) {
    ASSERT_EQ(actual.gradients[i].defined(), expected.gradients[i].defined()) << "gradient " << i;
    if (expected.gradients[i].defined()) {
      EXPECT_TRUE(torch::equal(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
    }
  }
}

// ---- one process

TEST(Recompute, IsExactWithDropout) {
  const auto one_region = [](const std::vector<TensorFunction>& layers, const Tensor& x) {
    return recompute([layers](const Tensor& y) { return plain(layers, y); }, x);
  };
  expect_same(run(one_region), run(plain));
}

TEST(Recompute, EveryKthLayer) {
  const Outcome expected = run(plain, 5);
  for (const int64_t k : {0, 1, 2, 3, 7}) {
    SCOPED_TRACE(k);
    expect_same(run([k](const auto& layers, const Tensor& x) { return recompute_every(k, layers, x); }, 5), expected);
  }
}

// Layers that count their runs: blocks 0, k, 2k, ... run twice.
TEST(Recompute, EveryKthLayerRunsTwice) {
  for (const auto& [k, expected] : {std::pair<int64_t, std::vector<int>>{0, {1, 1, 1, 1}},
                                    {1, {2, 2, 2, 2}},
                                    {2, {2, 1, 2, 1}},
                                    {3, {2, 1, 1, 2}}}) {
    std::vector<int> runs(4, 0);
    std::vector<TensorFunction> blocks;
    for (int& count : runs) {
      blocks.emplace_back([&count](const Tensor& x) {
        ++count;
        return x.sin();
      });
    }
    recompute_every(k, blocks, input()).sum().backward();
    EXPECT_EQ(runs, expected) << "k = " << k;
  }
  EXPECT_THAT(error_of([] { recompute_every(-1, {}, input()); }), HasSubstr("got -1"));
}

TEST(Recompute, RegionsMayBeNested) {
  const auto nested = [](const std::vector<TensorFunction>& layers, const Tensor& x) {
    const TensorFunction inner = [layers](const Tensor& y) { return layers[2](recompute(layers[1], y)); };
    return recompute([=](const Tensor& y) { return recompute(inner, recompute(layers[0], y)); }, x);
  };
  expect_same(run(nested), run(plain));
}

TEST(Recompute, TwoHundredRegionsInARow) {
  const auto all = [](const auto& layers, const Tensor& x) { return recompute_every(1, layers, x); };
  expect_same(run(all, 200), run(plain, 200));
}

TEST(Recompute, InputsThatNeedNoGradient) {
  const auto all = [](const auto& layers, const Tensor& x) { return recompute_every(1, layers, x); };
  expect_same(run(all, 3, false), run(plain, 3, false));
}

TEST(Recompute, WithoutGradientsItIsAPlainCall) {
  const auto layers = make_layers(1);
  int runs = 0;
  const TensorFunction counted = [&](const Tensor& x) {
    ++runs;
    return layers[0]->forward(x);
  };
  layers[0]->eval();
  for (const bool inference : {false, true}) {
    const Tensor x = input();
    const c10::InferenceMode mode(inference);
    const at::NoGradGuard no_grad;
    const Tensor output = recompute(counted, x);
    EXPECT_FALSE(output.requires_grad());
    EXPECT_TRUE(torch::equal(output, layers[0]->forward(x)));
  }
  EXPECT_EQ(runs, 2);
}

// Two outputs of three inputs, one of which is undefined.
struct Several {
  std::vector<Tensor> inputs{input(), Tensor(), input(false) * 2};
  Tensor weight = torch::ones({kWidth}).requires_grad_();

  TensorListFunction function() const {
    return [weight = weight](const std::vector<Tensor>& in) {
      EXPECT_FALSE(in[1].defined());
      return std::vector<Tensor>{in[0] * weight * in[2], in[0].sin() + in[2]};
    };
  }
};

TEST(Recompute, SeveralInputsAndOutputs) {
  Several expected;
  const std::vector<Tensor> direct = expected.function()(expected.inputs);
  (direct[0].sum() + direct[1].square().sum()).backward();
  Several actual;
  const std::vector<Tensor> outputs = recompute(actual.function(), actual.inputs);
  ASSERT_EQ(outputs.size(), 2U);
  (outputs[0].sum() + outputs[1].square().sum()).backward();
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(outputs[i], direct[i]));
  EXPECT_TRUE(torch::equal(actual.inputs[0].grad(), expected.inputs[0].grad()));
  EXPECT_TRUE(torch::equal(actual.weight.grad(), expected.weight.grad()));
}

TEST(Recompute, AnOutputThatNobodyUses) {
  Several expected;
  expected.function()(expected.inputs)[1].sum().backward();
  Several actual;
  recompute(actual.function(), actual.inputs)[1].sum().backward();
  EXPECT_TRUE(torch::equal(actual.inputs[0].grad(), expected.inputs[0].grad()));
}

TEST(Recompute, ASecondRunThatThrowsLeavesRandomNumbersAndAutocastAsTheyWere) {
  int runs = 0;
  const TensorFunction fails_later = [&runs](const Tensor& x) {
    const Tensor y = torch::dropout(x, 0.5, true);
    if (++runs == 2) throw std::runtime_error("the second run");
    return y;
  };
  const Tensor output = recompute(fails_later, input()).sum();
  torch::manual_seed(99);
  EXPECT_THROW(output.backward(), std::runtime_error);
  const Tensor next = torch::rand({4});
  torch::manual_seed(99);
  EXPECT_TRUE(torch::equal(next, torch::rand({4})));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, AnEmptyFunctionIsRefused) {
  EXPECT_THAT(error_of([] { recompute(TensorFunction(), input()); }), HasSubstr("empty function"));
}

void set_autocast(bool enabled) {
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::clear_cache();
}

// The backward runs where autocast is off; the second run still sees it on.
TEST(Recompute, TheSecondRunSeesTheAutocastOfTheFirst) {
  std::vector<at::ScalarType> dtypes;
  const auto train = [&](bool recomputes) {
    nn::Linear linear = make_seeded(kSeed, [] { return nn::Linear(kWidth, kWidth); });
    const TensorFunction function = [&dtypes, linear](const Tensor& x) mutable {
      const Tensor y = linear(x);
      dtypes.push_back(y.scalar_type());
      return y.to(at::kFloat);
    };
    set_autocast(true);
    const Tensor output = recomputes ? recompute(function, input()) : function(input());
    set_autocast(false);
    output.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return linear->weight.grad();
  };
  const Tensor expected = train(false);
  EXPECT_TRUE(torch::equal(train(true), expected));
  EXPECT_EQ(dtypes, std::vector<at::ScalarType>(3, at::kBFloat16));
}

// Gradients of a second run would be constants in a graph of gradients.
TEST(Recompute, IsForPlainBackwards) {
  int runs = 0;
  const Tensor x = input(), weight = torch::ones({kWidth, kWidth}).requires_grad_();
  const TensorFunction function = [&](const Tensor& y) {
    ++runs;
    return torch::tanh(y.mm(weight));
  };
  const Tensor loss = recompute(function, x).square().sum();
  const auto text = HasSubstr("[recompute] got a backward that records a graph (create_graph), expected first deriv");
  EXPECT_THAT(error_of([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }), text);
  EXPECT_THAT(error_of([&] { torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); }),
              text);
  // A backward for the gradient of x would leave one in the captured weight.
  const auto of_certain = HasSubstr("[recompute] got a backward for the gradients of certain tensors (torch::autograd");
  EXPECT_THAT(error_of([&] { torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true); }), of_certain);
  EXPECT_THAT(error_of([&] { torch::autograd::backward({loss}, {}, /*retain_graph=*/true, false, {x}); }), of_certain);
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(weight.grad().defined());
  loss.backward();
  const Tensor again = input();
  function(again).square().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), again.grad()));
}

// ---- sharded

struct Dense : nn::Module {
  Dense() { linear = register_module("linear", nn::Linear(kWidth, kWidth)); }
  Tensor forward(const Tensor& x) {
    if (throws_in_run >= 0 && throws_in_run-- == 0) throw std::runtime_error("from the layer");
    return torch::tanh(linear(x));
  }
  nn::Linear linear{nullptr};
  int throws_in_run = -1;  // 1: in the second run from now
};

// Units are the layers; with_ends: inlet and outlet are the root's.
struct Net : nn::Module {
  explicit Net(bool with_ends) {
    if (with_ends) inlet = register_module("inlet", nn::Linear(kWidth, kWidth));
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(std::make_shared<Dense>());
    if (with_ends) outlet = register_module("outlet", nn::Linear(kWidth, 2));
  }
  Tensor forward(const Tensor& rows, int64_t k) {
    std::vector<TensorFunction> functions;
    for (const auto& layer : *layers) {
      functions.emplace_back(
          [dense = std::dynamic_pointer_cast<Dense>(layer)](const Tensor& x) { return dense->forward(x); });
    }
    const Tensor x = recompute_every(k, functions, inlet.is_empty() ? rows : inlet(rows));
    return outlet.is_empty() ? x : outlet(x);
  }
  Dense& layer(size_t i) { return layers->at<Dense>(i); }
  nn::Linear inlet{nullptr};
  nn::ModuleList layers{nullptr};
  nn::Linear outlet{nullptr};
};

// A sharded Net that recomputes and an unsharded one that does not.
class NetPair {
 public:
  NetPair(const World& world, int64_t k, bool with_ends, Strategy strategy = Strategy::kOptimGradsParams)
      : world_(world), k_(k) {
    const auto make = [&] { return std::make_shared<Net>(with_ends); };
    sharded = make_seeded(kSeed, make);
    plain = make_seeded(kSeed, make);
    ShardOptions options;
    options.strategy = strategy;
    for (const auto& layer : *sharded->layers) fully_shard(*layer, Mesh::shard(world), options);
    root.emplace(fully_shard(*sharded, Mesh::shard(world), options));
    optimizer.emplace(parameters(*sharded), SGDOptions{.lr = 0.05});
    plain_optimizer.emplace(plain->parameters(), 0.05);
  }

  Tensor loss(uint64_t seed) const {
    return sharded->forward(share_of(world_, batch(seed, 12, kWidth)), k_).square().mean();
  }

  // Returns what it gathered.
  int64_t step(uint64_t seed) {
    root->reset_counters();
    loss(seed).backward();
    plain->forward(batch(seed, 12, kWidth), 0).square().mean().backward();
    expect_same_gradients(*sharded, *plain);
    optimizer->step();
    plain_optimizer->step();
    zero_grad(*sharded);
    plain_optimizer->zero_grad();
    expect_same_weights(*sharded, *plain);
    EXPECT_EQ(root->counters().resident_unsharded_bytes, 0);
    return root->counters().gathers;
  }

  std::shared_ptr<Net> sharded;
  std::shared_ptr<Net> plain;
  std::optional<Unit> root;
  std::optional<SGD> optimizer;
  std::optional<torch::optim::SGD> plain_optimizer;

 private:
  World world_;
  int64_t k_;
};

TEST(ShardedRecompute, TrainsLikeTheUnshardedModelWithout) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const World& world) {
        for (const int64_t k : {1, 2}) {
          SCOPED_TRACE(c10::str(name(strategy), ", ", ranks, " ranks, k = ", k));
          NetPair pair(world, k, /*with_ends=*/true, strategy);
          for (uint64_t step = 0; step < 3; ++step) pair.step(step);
        }
      });
    }
  }
}

int64_t steady_gathers(const World& world, int64_t k, bool with_ends) {
  NetPair pair(world, k, with_ends);
  for (uint64_t step = 0; step < 3; ++step) pair.step(step);
  return pair.step(3);
}

// A second run finds its unit gathered for the backward: 2U - k with U = 4, and k = 2, the root and the last layer.
TEST(ShardedRecompute, GathersNothingMore) {
  run_ranks(2, [](const World& world) {
    for (const int64_t k : {0, 1, 2}) EXPECT_EQ(steady_gathers(world, k, /*with_ends=*/true), 2 * 4 - 2) << "k = " << k;
  });
}

// The input needs no gradient, so the backward of the first layer reads no weight, and it counts in k; its second run
// does. U = 3; k = 2 without recompute, the first and the last layer; k = 1 with it.
TEST(ShardedRecompute, GathersAUnitThatOnlyASecondRunReads) {
  run_ranks(2, [](const World& world) {
    EXPECT_EQ(steady_gathers(world, 0, /*with_ends=*/false), 2 * 3 - 2);
    EXPECT_EQ(steady_gathers(world, 1, /*with_ends=*/false), 2 * 3 - 1);
  });
}

TEST(ShardedRecompute, AStepAfterASecondRunThatThrowsIsClean) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](const World& world) {
      NetPair pair(world, 1, /*with_ends=*/true);
      pair.step(1);
      pair.sharded->layer(1).throws_in_run = 1;
      const Tensor loss = pair.loss(2);
      EXPECT_THROW(loss.backward(), std::runtime_error);
      zero_grad(*pair.sharded);
      EXPECT_EQ(pair.root->counters().resident_unsharded_bytes, 0);
      for (uint64_t step = 3; step < 5; ++step) pair.step(step);
    });
  }
}

}  // namespace
}  // namespace fsdp::recompute_test
