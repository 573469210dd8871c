// Layers of experts, chosen by a router and spread over ranks, against loops over tokens on one rank.
#include "fsdp/parallel/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "fsdp/fsdp.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace fsdp::experts_test {
namespace {

using parallel::balance_loss;
using parallel::ExpertExchange;
using parallel::ExpertScore;
using parallel::GroupScore;
using parallel::Mixture;
using parallel::MixtureOptions;
using parallel::Ranks;
using parallel::route;
using parallel::RouterOptions;
using parallel::Routing;
using parallel::update_balance_bias;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

// ---- the router, number by number

using Numbers = std::vector<double>;

// The numbers of the `count` best, of equal ones the first.
std::vector<size_t> best_of(const Numbers& numbers, size_t count) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return numbers[a] > numbers[b]; });
  order.resize(count);
  return order;
}

std::pair<std::vector<size_t>, Numbers> route_one(const Numbers& logits, const Numbers& bias,
                                                  const RouterOptions& options) {
  Numbers scores;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (const double logit : logits) {
    scores.push_back(options.score == ExpertScore::kSoftmax ? std::exp(logit) / sum : 1 / (1 + std::exp(-logit)));
  }
  Numbers wanted = scores;
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += bias[i];
  const size_t groups = static_cast<size_t>(options.groups), own = wanted.size() / groups;
  Numbers group_scores;
  for (size_t group = 0; group < groups; ++group) {
    Numbers members(wanted.begin() + static_cast<int64_t>(group * own),
                    wanted.begin() + static_cast<int64_t>((group + 1) * own));
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(options.group_score == GroupScore::kBest ? members[0] : members[0] + members[1]);
  }
  const std::vector<size_t> chosen_groups = best_of(group_scores, static_cast<size_t>(options.best_groups));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::find(chosen_groups.begin(), chosen_groups.end(), i / own) == chosen_groups.end()) wanted[i] = -1e300;
  }
  const std::vector<size_t> chosen = best_of(wanted, static_cast<size_t>(options.experts_per_token));
  Numbers weights;
  for (const size_t expert : chosen) weights.push_back(scores[expert]);
  const double all = options.normalise ? std::accumulate(weights.begin(), weights.end(), 0.0) : 1;
  for (double& weight : weights) weight = weight / all * options.scale;
  return {chosen, weights};
}

TEST(Router, ChoosesAndWeighsAsTheDefinitionSays) {
  const std::vector<RouterOptions> all = {
      {2, ExpertScore::kSoftmax, true, 1, 1, 1, GroupScore::kBest},       // Mixtral
      {4, ExpertScore::kSoftmax, false, 16, 4, 2, GroupScore::kBest},     // DeepSeek-V2
      {3, ExpertScore::kSigmoid, true, 2.5, 4, 2, GroupScore::kBestTwo},  // DeepSeek-V3
      {1, ExpertScore::kSigmoid, false, 1, 1, 1, GroupScore::kBest}};
  const int64_t tokens = 200, experts = 16;
  const at::Generator numbers = generator(11);
  for (const RouterOptions& options : all) {
    // Of few different values, so that many are equal.
    const torch::Tensor logits = torch::randint(-3, 4, {tokens, experts}, numbers, torch::dtype(torch::kDouble)) / 2;
    const torch::Tensor bias = torch::randint(-1, 2, {experts}, numbers, torch::dtype(torch::kDouble)) / 4;
    const Routing routing = route(logits, options, bias);
    for (int64_t n = 0; n < tokens; ++n) {
      const auto row = [&](const torch::Tensor& t) {
        return Numbers(t.const_data_ptr<double>(), t.const_data_ptr<double>() + experts);
      };
      const auto [chosen, weights] = route_one(row(logits[n]), row(bias), options);
      for (size_t k = 0; k < chosen.size(); ++k) {
        const auto at = static_cast<int64_t>(k);
        ASSERT_EQ(routing.experts_NK[n][at].item<int64_t>(), static_cast<int64_t>(chosen[k])) << n;
        ASSERT_NEAR(routing.weights_NK[n][at].item<double>(), weights[k], 1e-12);
      }
    }
  }
}

TEST(Router, ALossAndABiasPullTowardsBalance) {
  Routing even{torch::tensor({{0, 1}, {2, 3}}), {}, torch::full({2, 4}, 0.25, torch::kDouble)};
  EXPECT_NEAR(balance_loss(even).item<double>(), 2, 1e-12);
  Routing all_to_one{torch::zeros({3, 1}, torch::kLong), {}, torch::tensor({1.0, 0.0}, torch::kDouble).expand({3, 2})};
  EXPECT_NEAR(balance_loss(all_to_one).item<double>(), 2, 1e-12);
  const torch::Tensor bias = torch::zeros({4});
  update_balance_bias(bias, {torch::tensor({{0, 1}, {0, 2}}), {}, torch::zeros({2, 4})}, 0.1);
  EXPECT_TRUE(torch::allclose(bias, torch::tensor({-0.1, 0.0, 0.0, 0.1})));
  run_ranks(2, [](const World& world) {
    const torch::Tensor shared = torch::zeros({2});
    // Rank 0's tokens choose expert 0 three times, rank 1's expert 1 once.
    const torch::Tensor chosen =
        world.rank == 0 ? torch::zeros({3, 1}, torch::kLong) : torch::ones({1, 1}, torch::kLong);
    update_balance_bias(shared, {chosen, {}, torch::zeros({chosen.size(0), 2})}, 0.5, world.connection->world());
    EXPECT_TRUE(torch::allclose(shared, torch::tensor({-0.5, 0.5})));
  });
}

TEST(Router, OptionsThatDoNotFitAreRefused) {
  const torch::Tensor logits = torch::zeros({2, 6});
  EXPECT_THAT([&] { route(logits, {.groups = 4}); }, ThrowsMessage<Error>(HasSubstr("groups: got 4 for 6 experts")));
  EXPECT_THAT([&] { route(logits, {.experts_per_token = 4, .groups = 2}); },
              ThrowsMessage<Error>(HasSubstr("experts_per_token: got 4, expected 1 to 3")));
  EXPECT_THAT([&] { route(logits, {.groups = 2, .best_groups = 3}); },
              ThrowsMessage<Error>(HasSubstr("best_groups: got 3, expected 1 to 2")));
}

// ---- the way to the experts and back

constexpr int64_t kHidden = 8, kInner = 6, kExperts = 4;

// A token after the other.
torch::Tensor mix_one_by_one(const torch::Tensor& x_NH, const Routing& routing, const torch::Tensor& gate_up,
                             const torch::Tensor& down) {
  std::vector<torch::Tensor> rows;
  for (int64_t n = 0; n < x_NH.size(0); ++n) {
    torch::Tensor sum = torch::zeros({kHidden}, x_NH.options());
    for (int64_t k = 0; k < routing.experts_NK.size(1); ++k) {
      const int64_t expert = routing.experts_NK[n][k].item<int64_t>();
      const torch::Tensor inner = gate_up[expert].matmul(x_NH[n]);
      const torch::Tensor y =
          down[expert].matmul(torch::silu(inner.narrow(0, 0, kInner)) * inner.narrow(0, kInner, kInner));
      sum = sum + routing.weights_NK[n][k] * y;
    }
    rows.push_back(sum);
  }
  return rows.empty() ? x_NH.clone() : torch::stack(rows);
}

// What a rank's tokens choose.
enum class Choice { kRandom, kOneExpert, kNeverTheLast };

Routing choose(Choice choice, const torch::Tensor& weights_NK, const at::Generator& numbers) {
  const int64_t tokens = weights_NK.size(0), count = weights_NK.size(1);
  torch::Tensor wishes = torch::rand({tokens, kExperts}, numbers);
  if (choice == Choice::kOneExpert) wishes = torch::tensor({3.0, 2.0, 1.0, 0.0}).expand({tokens, kExperts});
  if (choice == Choice::kNeverTheLast) wishes.select(1, kExperts - 1).fill_(-1);
  return {wishes.argsort(1, /*descending=*/true).narrow(1, 0, count).contiguous(), weights_NK, {}};
}

void expect_equal_mixtures(const World& world, Choice choice, int64_t count) {
  const Mesh mesh(world, {{"ep", world.size}});
  const auto ranks = Ranks::along(mesh, "ep");
  const at::Generator numbers = generator(21);
  const auto draw = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, numbers, torch::dtype(torch::kDouble)).requires_grad_();
  };
  const torch::Tensor gate_up = draw({kExperts, 2 * kInner, kHidden}), down = draw({kExperts, kHidden, kInner});
  const int64_t own = kExperts / world.size;
  const auto part_of = [&](const torch::Tensor& weights) {
    return weights.detach().narrow(0, world.rank * own, own).clone().requires_grad_();
  };
  const torch::Tensor own_gate_up = part_of(gate_up), own_down = part_of(down);
  torch::Tensor loss = torch::zeros({}, torch::kDouble);
  for (int rank = 0; rank < world.size; ++rank) {
    const int64_t tokens = 5 * rank;  // rank 0 has none
    const torch::Tensor x = draw({tokens, kHidden}), weights = draw({tokens, count}), aim = draw({tokens, kHidden});
    const Routing routing = choose(choice, weights, numbers);
    const torch::Tensor expected = mix_one_by_one(x, routing, gate_up, down);
    loss = loss + (expected * aim.detach()).sum();
    if (rank != world.rank) continue;
    const torch::Tensor own_x = x.detach().clone().requires_grad_(),
                        own_weights = weights.detach().clone().requires_grad_();
    const ExpertExchange exchange(routing.experts_NK, kExperts, ranks, "mixture");
    const torch::Tensor rows = exchange.dispatch(own_x);
    EXPECT_EQ(rows.size(0),
              std::accumulate(exchange.rows_of_experts().begin(), exchange.rows_of_experts().end(), int64_t{0}));
    const auto inner = parallel::grouped_linear(rows, exchange.rows_of_experts(), own_gate_up).chunk(2, -1);
    const torch::Tensor results =
        parallel::grouped_linear(torch::silu(inner[0]) * inner[1], exchange.rows_of_experts(), own_down);
    const torch::Tensor y = exchange.combine(results, own_weights);
    expect_close(y, expected.detach(), "output");
    (y * aim.detach()).sum().backward();
    (expected * aim.detach()).sum().backward({}, /*retain_graph=*/true);
    if (tokens == 0) continue;
    expect_close(own_x.grad(), x.grad(), "gradient of tokens");
    expect_close(own_weights.grad(), weights.grad(), "gradient of weights");
  }
  gate_up.mutable_grad().reset();
  down.mutable_grad().reset();
  if (loss.requires_grad()) loss.backward();
  const auto expect_part = [&](const torch::Tensor& part, const torch::Tensor& whole, const std::string& what) {
    const torch::Tensor expected = whole.grad().defined() ? whole.grad() : torch::zeros_like(whole);
    ASSERT_TRUE(part.grad().defined()) << what;
    expect_close(part.grad(), expected.narrow(0, world.rank * own, own), what);
  };
  expect_part(own_gate_up, gate_up, "gradient of gate_up");
  expect_part(own_down, down, "gradient of down");
}

TEST(ExpertExchange, EqualsALoopOverTokens) {
  for (const int size : {1, 2, 4}) {
    for (const Choice choice : {Choice::kRandom, Choice::kOneExpert, Choice::kNeverTheLast}) {
      for (const int64_t count : {1, 3}) {
        SCOPED_TRACE(c10::str(size, " ranks, choice ", static_cast<int>(choice), ", ", count, " experts of a token"));
        run_ranks(size, [&](const World& world) { expect_equal_mixtures(world, choice, count); });
      }
    }
  }
}

// A loss of the gradients of tokens, whose experts multiply each number by one of their own.
TEST(ExpertExchange, GradientsOfGradientsAreThoseOfOneRank) {
  constexpr int64_t kTokens = 5, kChosen = 2;  // of each of two ranks; experts of a token
  const at::Generator numbers = generator(23);
  const auto draw = [&](at::IntArrayRef sizes) { return torch::randn(sizes, numbers, torch::dtype(torch::kDouble)); };
  const torch::Tensor x = draw({2 * kTokens, kHidden}), factors = draw({kExperts, kHidden});
  const Routing routing = choose(Choice::kRandom, draw({2 * kTokens, kChosen}), numbers);
  const auto gradients_of = [](const torch::Tensor& y, const std::vector<torch::Tensor>& leaves) {
    const torch::Tensor slope = torch::autograd::grad({y.sin().sum()}, {leaves[0]}, {}, /*retain_graph=*/true,
                                                      /*create_graph=*/true)[0];
    return torch::autograd::grad({slope.square().sum()}, leaves);
  };
  const std::vector<torch::Tensor> whole = {x.clone().requires_grad_(), factors.clone().requires_grad_()};
  const torch::Tensor factors_NKH = whole[1].index_select(0, routing.experts_NK.flatten()).unflatten(0, {-1, kChosen});
  const torch::Tensor results_NKH = torch::tanh(whole[0].unsqueeze(1) * factors_NKH);
  const auto expected = gradients_of((results_NKH * routing.weights_NK.unsqueeze(-1)).sum(1), whole);
  run_ranks(2, [&](const World& world) {
    const auto ranks = Ranks::along(Mesh(world, {{"ep", 2}}), "ep");
    const auto own = [&](const torch::Tensor& t) { return ranks->own_part(t, 0, "test").clone(); };
    const std::vector<torch::Tensor> leaves = {own(x).requires_grad_(), own(factors).requires_grad_()};
    const ExpertExchange exchange(own(routing.experts_NK), kExperts, ranks, "mixture");
    const torch::Tensor of_rows = leaves[1].repeat_interleave(at::tensor(exchange.rows_of_experts(), at::kLong), 0);
    const torch::Tensor results = torch::tanh(exchange.dispatch(leaves[0]) * of_rows);
    const auto actual = gradients_of(exchange.combine(results, own(routing.weights_NK)), leaves);
    expect_close(actual[0], own(expected[0]), "gradient of tokens");
    expect_close(actual[1], own(expected[1]), "gradient of factors");
  });
}

TEST(ExpertExchange, BytesAreThoseOfTheRowsOfOthers) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"ep", 2}});
    const auto ranks = Ranks::along(mesh, "ep");
    // Two of rank 0's tokens are for experts of rank 1, and one of rank 1's for one of rank 0.
    const torch::Tensor experts = torch::tensor({{0}, {2}, {3}});
    const ExpertExchange exchange(experts, kExperts, ranks, "mixture");
    const torch::Tensor x = torch::ones({3, kHidden}).requires_grad_();
    ranks->reset_traffic();
    const torch::Tensor y = exchange.combine(exchange.dispatch(x), torch::ones({3, 1}));
    const int64_t row = kHidden * 4, sent = world.rank == 0 ? 2 : 1, arrived = 3 - sent;
    EXPECT_EQ(ranks->traffic().bytes, (arrived + sent) * row);
    y.sum().backward();
    EXPECT_EQ(ranks->traffic().bytes, 2 * (arrived + sent) * row);
    EXPECT_EQ(ranks->traffic().calls, 4);
  });
}

// ---- under fully_shard

struct Net : torch::nn::Module {
  explicit Net(const Mesh& mesh) {
    before = register_module("before", torch::nn::Linear(kHidden, kHidden));
    mixture = register_module(
        "mixture", Mixture(MixtureOptions{kExperts, kHidden, kInner, {.experts_per_token = 2}, "mixture"}, mesh));
    after = register_module("after", torch::nn::Linear(kHidden, kHidden));
  }
  torch::Tensor forward(const torch::Tensor& x_BTH) {
    const torch::Tensor h = torch::tanh(before(x_BTH));
    return after(h + mixture(h));
  }
  torch::nn::Linear before{nullptr}, after{nullptr};
  Mixture mixture{nullptr};
};

std::shared_ptr<Net> make_net(const Mesh& mesh) {
  const auto connected = Ranks::along(mesh, "ep");  // not while others wait for the generator
  const auto net = make_seeded(31, [&] { return std::make_shared<Net>(mesh); });
  net->to(torch::kDouble);
  return net;
}

void expect_equal_steps(const World& world, int ep, Strategy strategy) {
  const Mesh mesh = Mesh::parallel(world, {{"ep", ep}});
  const auto whole = make_net(Mesh(world, {{"alone", 1}, {"rest", world.size}}));
  const auto net = make_net(mesh);
  ShardOptions options;
  options.strategy = strategy;
  fully_shard(*net->mixture->experts, mesh, options);
  const Unit root = fully_shard(*net, mesh.flattened({"shard", "ep"}, "shard"), options);
  torch::optim::SGD whole_sgd(whole->parameters(), 0.1), sgd(parameters(*net), 0.1);
  for (int step = 0; step < 2; ++step) {
    const at::Generator numbers = generator(40 + static_cast<uint64_t>(step));
    const torch::Tensor x = torch::randn({world.size, 2, 5, kHidden}, numbers, torch::dtype(torch::kDouble));
    const torch::Tensor aim = torch::randn({world.size, 2, 5, kHidden}, numbers, torch::dtype(torch::kDouble));
    whole->zero_grad();
    torch::mse_loss(whole->forward(x.flatten(0, 1)), aim.flatten(0, 1)).backward();
    zero_grad(*net);
    torch::mse_loss(net->forward(x[world.rank]), aim[world.rank]).backward();
    const StateDict gradients = full_gradients(*net);
    for (const auto& item : whole->named_parameters()) {
      expect_close(gradients.tensors.at(item.key()), item.value().grad(), item.key());
    }
    const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.01);
    EXPECT_NEAR(clip_grad_norm_(*net, 0.01).item<double>() / norm, 1, 1e-6);
    whole_sgd.step();
    sgd.step();
  }
  const StateDict weights = full_state_dict(*net);
  for (const auto& item : whole->named_parameters()) {
    expect_close(weights.tensors.at(item.key()), item.value().detach(), item.key());
  }
}

TEST(ExpertParallel, TrainsAsTheWholeModel) {
  for (const auto& [ranks, ep] : {std::pair(2, 2), std::pair(4, 2), std::pair(4, 4), std::pair(8, 4)}) {
    for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      SCOPED_TRACE(c10::str(ranks, " ranks, ep ", ep, ", ", name(strategy)));
      run_ranks(ranks, [&, ep = ep](const World& world) { expect_equal_steps(world, ep, strategy); });
    }
  }
}

TEST(ExpertParallel, WhatDoesNotFitIsRefused) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"ep", 2}});
    EXPECT_THAT([&] { parallel::Experts(3, kHidden, kInner, mesh); },
                ThrowsMessage<Error>(HasSubstr("got 3 experts for 2 ranks, expected a multiple of that: 2 or 4")));
    const auto net = make_net(mesh);
    EXPECT_THAT([&] { fully_shard(*net, mesh); },
                ThrowsMessage<Error>(
                    ::testing::AllOf(HasSubstr("is the same on all ranks along axis 'ep'"), HasSubstr("flattened"))));
  });
}

}  // namespace
}  // namespace fsdp::experts_test
