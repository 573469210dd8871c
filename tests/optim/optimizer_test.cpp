// fsdp::AdamW and SGD against torch::optim, on plain tensors and on the leaves of sharded models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using testing::generator;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using ::testing::ThrowsMessage;

using Tensors = std::vector<torch::Tensor>;

constexpr int kSteps = 12;

Tensors random_leaves(uint64_t seed) {
  auto random = generator(seed);
  Tensors leaves;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1}, {7}, {3, 5}, {33, 4}, {0}, {257}}) {
    leaves.push_back(torch::randn(sizes, random).requires_grad_());
  }
  return leaves;
}

// Gradients of every magnitude; in some steps some leaves have none.
void give_gradients(const Tensors& leaves, uint64_t seed, int step) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    auto random = generator(seed + 1000 * static_cast<uint64_t>(step) + i);
    torch::Tensor gradient =
        torch::randn(leaves[i].sizes(), random) * torch::exp(2 * torch::randn(leaves[i].sizes(), random));
    const bool absent = (static_cast<size_t>(step) + i) % 4 == 3;
    torch::Tensor(leaves[i]).mutable_grad() = absent ? torch::Tensor() : gradient;
  }
}

void expect_close(const Tensors& actual, const Tensors& expected, double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], relative, relative)) << what << ", tensor " << i;
  }
}

template <class Ours, class Theirs>
void expect_parity_on_plain_tensors(const std::function<Ours(Tensors)>& ours,
                                    const std::function<Theirs(Tensors)>& theirs, const std::string& what) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Tensors mine = random_leaves(seed);
    const Tensors reference = random_leaves(seed);
    Ours optimizer = ours(mine);
    Theirs torch_optimizer = theirs(reference);
    for (int step = 0; step < kSteps; ++step) {
      give_gradients(mine, seed, step);
      give_gradients(reference, seed, step);
      optimizer.step();
      torch_optimizer.step();
    }
    expect_close(mine, reference, 1e-5, what + ", seed " + std::to_string(seed));
  }
}

TEST(AdamW, FollowsTorchOnPlainTensors) {
  for (const AdamWOptions& options :
       {AdamWOptions{}, AdamWOptions{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.3},
        AdamWOptions{.lr = 0.01, .beta1 = 0, .weight_decay = 0}}) {
    expect_parity_on_plain_tensors<AdamW, torch::optim::AdamW>(
        [&](Tensors leaves) { return AdamW(std::move(leaves), options); },
        [&](Tensors leaves) {
          return torch::optim::AdamW(std::move(leaves), torch::optim::AdamWOptions(options.lr)
                                                            .betas({options.beta1, options.beta2})
                                                            .eps(options.eps)
                                                            .weight_decay(options.weight_decay));
        },
        c10::str("lr ", options.lr, ", beta1 ", options.beta1));
  }
}

TEST(SGD, FollowsTorchOnPlainTensors) {
  for (const SGDOptions& options :
       {SGDOptions{.lr = 0.1}, SGDOptions{.lr = 0.01, .weight_decay = 0.2}, SGDOptions{.lr = 0.01, .momentum = 0.9},
        SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1},
        SGDOptions{.lr = 0.01, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true}}) {
    expect_parity_on_plain_tensors<SGD, torch::optim::SGD>(
        [&](Tensors leaves) { return SGD(std::move(leaves), options); },
        [&](Tensors leaves) {
          return torch::optim::SGD(std::move(leaves), torch::optim::SGDOptions(options.lr)
                                                          .momentum(options.momentum)
                                                          .dampening(options.dampening)
                                                          .weight_decay(options.weight_decay)
                                                          .nesterov(options.nesterov));
        },
        c10::str("lr ", options.lr, ", momentum ", options.momentum, ", nesterov ", options.nesterov));
  }
}

TEST(AdamW, LearningRateAndCountsAreVisible) {
  AdamW optimizer(std::vector<AdamWGroup>{{random_leaves(1), {.lr = 0.1}}, {random_leaves(2), {.lr = 0.2}}});
  EXPECT_EQ(optimizer.num_groups(), 2U);
  optimizer.set_lr(0.5);
  EXPECT_EQ(optimizer.options(1).lr, 0.5);
  optimizer.options(0).lr = 0.25;
  EXPECT_EQ(optimizer.options(0).lr, 0.25);
  EXPECT_EQ(optimizer.num_steps(), 0);
  optimizer.step();  // no gradients: nothing to update, still a step
  EXPECT_EQ(optimizer.num_steps(), 1);
}

TEST(AdamW, UpdatesAreSeenByAutograd) {
  const Tensors leaves{torch::ones({3}, torch::requires_grad())};
  leaves[0].square().sum().backward();
  const auto version = leaves[0]._version();
  AdamW(leaves, AdamWOptions{}).step();
  EXPECT_GT(leaves[0]._version(), version);
}

// ---- what is refused

TEST(Optimizers, RefuseWhatTheyCannotUpdate) {
  const auto adamw = [](Tensors tensors) { return [tensors] { AdamW(tensors, AdamWOptions{}); }; };
  const torch::Tensor leaf = torch::ones({3}, torch::requires_grad());
  EXPECT_THAT(adamw({torch::ones({3}, torch::dtype(torch::kHalf).requires_grad(true))}),
              ThrowsMessage<Error>(HasSubstr("dtype")));
  EXPECT_THAT(adamw({torch::ones({3}, torch::dtype(torch::kBFloat16).requires_grad(true))}),
              ThrowsMessage<Error>(HasSubstr("Precision::bf16()")));
  EXPECT_THAT(adamw({leaf * 2}), ThrowsMessage<Error>(HasSubstr("computed from others")));
  EXPECT_THAT(adamw({leaf, leaf}), ThrowsMessage<Error>(HasSubstr("twice")));
  EXPECT_THAT(adamw({torch::Tensor()}), ThrowsMessage<Error>(HasSubstr("undefined")));
  EXPECT_THAT(adamw({torch::ones({3, 2}).t().requires_grad_()}), ThrowsMessage<Error>(HasSubstr("contiguous")));
  EXPECT_THAT(([&] {
                SGD(std::vector<SGDGroup>{{{leaf}, {}}, {{leaf}, {}}});
              }),
              ThrowsMessage<Error>(HasSubstr("twice")));
}

TEST(Optimizers, RefuseOptionsOutOfRange) {
  const Tensors leaves{torch::ones({3}, torch::requires_grad())};
  EXPECT_THROW(AdamW(leaves, AdamWOptions{.lr = -1}), Error);
  EXPECT_THROW(AdamW(leaves, AdamWOptions{.beta1 = 1}), Error);
  EXPECT_THROW(AdamW(leaves, AdamWOptions{.eps = -1}), Error);
  EXPECT_THROW(SGD(leaves, SGDOptions{.weight_decay = -1}), Error);
  EXPECT_THROW(SGD(leaves, SGDOptions{.nesterov = true}), Error);
}

TEST(Optimizers, RefuseGradientsOfAnotherDtypeOrShape) {
  const torch::Tensor leaf = torch::ones({3}, torch::requires_grad());
  AdamW optimizer(Tensors{leaf}, AdamWOptions{});
  leaf.mutable_grad() = torch::ones({4});
  EXPECT_THAT([&] { optimizer.step(); }, ThrowsMessage<Error>(HasSubstr("4 elements")));
  leaf.mutable_grad() = torch::ones({3}, torch::kDouble);
  EXPECT_THAT([&] { optimizer.step(); }, ThrowsMessage<Error>(HasSubstr("dtype")));
}

// ---- on a sharded model

// Embedding tied to the head, a norm, and a layer: shapes of 2 dims and 1.
struct Net : torch::nn::Module {
  Net() {
    tied = register_parameter("tied", torch::randn({9, 6}) * 0.3);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    layer = register_module("layer", torch::nn::Linear(6, 6));
    head = register_module("head", std::make_shared<torch::nn::Module>());
    head->register_parameter("weight", tied);
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::matmul(layer(norm(torch::matmul(x, tied))), tied.t()); }
  torch::Tensor tied;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear layer{nullptr};
  std::shared_ptr<torch::nn::Module> head;
};

std::shared_ptr<Net> make_net() {
  return make_seeded(5, [] { return std::make_shared<Net>(); });
}

torch::Tensor rows() { return torch::randn({8, 9}, generator(6)); }

void shard_net(Net& net, const World& world, Strategy strategy = Strategy::kOptimGradsParams) {
  ShardOptions options;
  options.strategy = strategy;
  fully_shard(*net.layer, Mesh::shard(world), options);
  fully_shard(net, Mesh::shard(world), options);
}

// The unsharded model's distinct parameters by the names of `leaves`.
Tensors counterparts(const Net& plain, const Net& sharded) {
  const auto all = plain.named_parameters();
  Tensors list;
  for (const auto& [name, leaf] : named_parameters(sharded)) list.push_back(all[name]);
  return list;
}

void expect_same_slices(const Net& sharded, const Net& plain) {
  const Tensors expected = counterparts(plain, sharded);
  const Tensors leaves = parameters(sharded);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LocalRange range = local_range(leaves[i]);
    EXPECT_TRUE(torch::allclose(leaves[i], expected[i].flatten().slice(0, range.begin, range.end), 1e-4, 1e-5)) << i;
  }
}

TEST(Optimizers, ModuleParametersOfAShardedModelAreRefused) {
  run_ranks(2, [](const World& world) {
    const auto net = make_net();
    shard_net(*net, world);
    EXPECT_THAT([&] { AdamW(net->parameters(), AdamWOptions{}); },
                ThrowsMessage<Error>(HasSubstr("fsdp::parameters(module)")));
    EXPECT_THAT([&] { SGD(net->parameters(), SGDOptions{}); },
                ThrowsMessage<Error>(HasSubstr("fsdp::parameters(module)")));
  });
}

// Two groups of options cut through the parameters of one unit.
TEST(Optimizers, GroupsMayDivideAUnit) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [](const World& world) {
      const auto net = make_net();
      const auto plain = make_net();
      shard_net(*net, world);
      const Tensors leaves = parameters(*net);
      const Tensors weights = counterparts(*plain, *net);
      std::vector<AdamWGroup> groups(2);
      std::vector<torch::optim::OptimizerParamGroup> torch_groups;
      Tensors halves[2];
      for (size_t i = 0; i < leaves.size(); ++i) {
        groups[i % 2].parameters.push_back(leaves[i]);
        halves[i % 2].push_back(weights[i]);
      }
      groups[0].options = {.lr = 0.05, .weight_decay = 0.2};
      groups[1].options = {.lr = 0.01, .weight_decay = 0};
      for (size_t k = 0; k < 2; ++k) {
        const AdamWOptions& options = groups[k].options;
        torch_groups.emplace_back(halves[k],
                                  std::make_unique<torch::optim::AdamWOptions>(
                                      torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay)));
      }
      AdamW optimizer(groups);
      torch::optim::AdamW torch_optimizer(torch_groups, torch::optim::AdamWOptions(1.0));
      for (int step = 0; step < 4; ++step) {
        net->forward(rows()).square().mean().backward();
        plain->forward(rows()).square().mean().backward();
        optimizer.step();
        torch_optimizer.step();
        zero_grad(*net);
        torch_optimizer.zero_grad();
      }
      expect_same_slices(*net, *plain);
    });
  }
}

TEST(Optimizers, StateIsTwoShards) {
  run_ranks(3, [](const World& world) {
    const auto net = make_net();
    shard_net(*net, world);
    AdamW optimizer(parameters(*net), AdamWOptions{});
    SGD with_momentum(parameters(*net), SGDOptions{.momentum = 0.9});
    SGD without(parameters(*net), SGDOptions{});
    EXPECT_EQ(optimizer.state_bytes(), 0);  // until the first step
    net->forward(rows()).square().mean().backward();
    optimizer.step();
    with_momentum.step();
    without.step();
    // 16-byte aligned starts: the layer has 36 + 6 elements, the root 54 (+2) + 6 (+2) + 6 (+2) = 72.
    const int64_t shard_bytes = 4 * (16 + 24);
    EXPECT_EQ(optimizer.state_bytes(), 2 * shard_bytes);
    EXPECT_EQ(with_momentum.state_bytes(), shard_bytes);
    EXPECT_EQ(without.state_bytes(), 0);
  });
}

// ---- the leaves

TEST(Leaves, HaveNamesOrderSizesAndRangesOfTheModel) {
  run_ranks(3, [](const World& world) {
    const auto net = make_net();
    const auto plain = make_net();
    shard_net(*net, world);
    const auto named = named_parameters(*net);
    std::vector<std::string> names;
    for (const auto& [name, leaf] : named) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"tied", "norm.weight", "norm.bias", "layer.weight", "layer.bias"}));
    for (const auto& [name, leaf] : named) {
      EXPECT_EQ(leaf.dim(), 1);
      EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
      EXPECT_EQ(torch::IntArrayRef(logical_sizes(leaf)), plain->named_parameters()[name].sizes()) << name;
      const LocalRange range = local_range(leaf);
      EXPECT_EQ(range.end - range.begin, leaf.numel());
      torch::Tensor count = torch::zeros({plain->named_parameters()[name].numel()});
      count.slice(0, range.begin, range.end).add_(1);
      EXPECT_TRUE(torch::equal(sum_over_ranks(world, count), torch::ones_like(count))) << name;  // each element once
    }
    EXPECT_TRUE(named[0].second.is_same(parameters(*net)[0]));
  });
}

TEST(Leaves, OfAnUnshardedModelAreItsParameters) {
  const auto net = make_net();
  const Tensors leaves = parameters(*net);
  ASSERT_EQ(leaves.size(), 5U);
  EXPECT_TRUE(leaves[0].is_same(net->tied));
  EXPECT_EQ(logical_sizes(leaves[0]), (std::vector<int64_t>{9, 6}));
  EXPECT_EQ(local_range(leaves[0]).end, 54);
}

TEST(Leaves, NormsAndBiasesGetNoDecay) {
  for (const int size : {1, 2}) {
    run_ranks(size, [](const World& world) {
      const auto net = make_net();
      shard_net(*net, world);
      const std::vector<DecayGroup> groups = decay_groups(*net, 0.1);
      ASSERT_EQ(groups.size(), 2U);
      EXPECT_EQ(groups[0].weight_decay, 0.1);
      EXPECT_EQ(groups[0].parameters.size(), 2U);  // tied, layer.weight
      EXPECT_EQ(groups[1].weight_decay, 0);
      EXPECT_EQ(groups[1].parameters.size(), 3U);
      AdamW optimizer(groups, AdamWOptions{.weight_decay = 7});
      EXPECT_EQ(optimizer.options(0).weight_decay, 0.1);
      EXPECT_EQ(optimizer.options(1).weight_decay, 0);
    });
  }
}

// ---- clipping

TEST(ClipGradNorm, EqualsTorchOnTheUnshardedModel) {
  for (const int size : {1, 2, 3, 4}) {
    for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGradsParams}) {
      for (const double max_norm : {1e-3, 0.1, 1e6}) {
        run_ranks(size, [&](const World& world) {
          SCOPED_TRACE(c10::str(size, " ranks, ", name(strategy), ", max norm ", max_norm));
          const auto net = make_net();
          const auto plain = make_net();
          shard_net(*net, world, strategy);
          net->forward(rows()).square().mean().backward();
          plain->forward(rows()).square().mean().backward();
          const Tensors distinct = counterparts(*plain, *net);  // the tied weight once
          const double expected = torch::nn::utils::clip_grad_norm_(distinct, max_norm);
          const torch::Tensor norm = clip_grad_norm_(*net, max_norm);
          EXPECT_EQ(norm.dim(), 0);
          EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
          const Tensors leaves = parameters(*net);
          for (size_t i = 0; i < leaves.size(); ++i) {
            const LocalRange range = local_range(leaves[i]);
            const torch::Tensor slice = distinct[i].grad().flatten().slice(0, range.begin, range.end);
            EXPECT_TRUE(torch::allclose(leaves[i].grad(), slice, 1e-4, 1e-7)) << i;
          }
          const std::vector<std::string> all = gather_strings(world, std::to_string(norm.item<float>()));
          for (const std::string& other : all) EXPECT_EQ(other, all[0]);
        });
      }
    }
  }
}

TEST(ClipGradNorm, TakenAlongByAdamWHasTheSameBits) {
  run_ranks(2, [](const World& world) {
    const auto scaled = make_net();
    const auto along = make_net();
    for (const auto& net : {scaled, along}) shard_net(*net, world);
    AdamW scaled_steps(parameters(*scaled), {.lr = 0.1}), along_steps(parameters(*along), {.lr = 0.1});
    for (int step = 1; step < 4; ++step) {
      for (const auto& net : {scaled, along}) {
        zero_grad(*net);
        (net->forward(rows()) * step).square().mean().backward();
      }
      const double max_norm = 0.1 * step * step;
      const float norm = clip_grad_norm_(*scaled, max_norm).item<float>();
      scaled_steps.step();
      const GradNorm found = grad_norm(parameters(*along), max_norm);
      EXPECT_EQ(found.value(), norm);
      EXPECT_LT(found.factor.item<float>(), 1);
      along_steps.step(found.factor);
      const Tensors expected = parameters(*scaled), actual = parameters(*along);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  });
}

TEST(ClipGradNorm, HandlesMissingAndNonFiniteGradients) {
  run_ranks(2, [](const World& world) {
    const auto net = make_net();
    shard_net(*net, world);
    EXPECT_EQ(clip_grad_norm_(*net, 1.0).item<float>(), 0.0F);
    net->forward(rows() * std::nanf("")).square().mean().backward();
    EXPECT_TRUE(std::isnan(clip_grad_norm_(*net, 1.0).item<float>()));
    EXPECT_THROW(clip_grad_norm_(*net, 0), Error);
  });
}

TEST(ZeroGrad, EmptiesLeavesAndTheNextReduceOverwrites) {
  run_ranks(2, [](const World& world) {
    const auto net = make_net();
    const auto plain = make_net();
    shard_net(*net, world);
    for (int step = 0; step < 2; ++step) {
      net->forward(rows()).square().mean().backward();
      for (const torch::Tensor& leaf : parameters(*net)) EXPECT_TRUE(leaf.grad().defined());
      zero_grad(*net);
      for (const torch::Tensor& leaf : parameters(*net)) EXPECT_FALSE(leaf.grad().defined());
    }
    net->forward(rows()).square().mean().backward();
    plain->forward(rows()).square().mean().backward();
    const torch::Tensor leaf = parameters(*net)[0];
    const LocalRange range = local_range(leaf);
    EXPECT_TRUE(
        torch::allclose(leaf.grad(), plain->tied.grad().flatten().slice(0, range.begin, range.end), 1e-4, 1e-6));
  });
}

}  // namespace
}  // namespace fsdp
