// Optimizers that LibTorch lacks, element by element against their formulas in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "fsdp/fsdp.h"
#include "fsdp/optim/flat_parameters.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using testing::generator;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using ::testing::ThrowsMessage;

using Tensors = std::vector<torch::Tensor>;

// One element of a weight with what its optimizer remembers.
struct Element {
  double weight = 0;
  double first = 0;
  double second = 0;
  int steps = 0;
};
using ElementRule = std::function<void(Element&, double gradient)>;

torch::Tensor rule_gradient(at::IntArrayRef sizes, int step, size_t i) {
  return torch::randn(sizes, generator(3000 + 10 * static_cast<uint64_t>(step) + i));
}

constexpr int kRuleSteps = 10;

// `whole`: the values that a parameter had at first; its last ones by the rule.
torch::Tensor by_rule(const torch::Tensor& whole, size_t i, const ElementRule& rule) {
  torch::Tensor result = whole.to(torch::kDouble).clone().flatten();
  for (int64_t k = 0; k < result.numel(); ++k) {
    Element element{result[k].item<double>()};
    for (int step = 0; step < kRuleSteps; ++step) {
      rule(element, rule_gradient(whole.sizes(), step, i).flatten()[k].item<double>());
    }
    result[k] = element.weight;
  }
  return result;
}

struct RuleNet : torch::nn::Module {
  RuleNet() {
    layers = register_module("layers", torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3)));
    last = register_parameter("last", torch::randn({11}));
  }
  torch::nn::Sequential layers{nullptr};
  torch::Tensor last;
};

// Over shards on 1, 2 and 3 ranks, with gradients that are given, half of them as a factor.
void expect_rule(const std::function<std::unique_ptr<FlatOptimizer>(Tensors)>& make, const ElementRule& rule) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(size);
    run_ranks(size, [&](const World& world) {
      const auto make_net = [] { return make_seeded(12, [] { return std::make_shared<RuleNet>(); }); };
      const auto net = make_net();
      const auto plain = make_net();
      fully_shard(*net->layers, Mesh::shard(world));
      fully_shard(*net, Mesh::shard(world));
      const auto optimizer = make(parameters(*net));
      const auto leaves = named_parameters(*net);
      for (int step = 0; step < kRuleSteps; ++step) {
        for (size_t i = 0; i < leaves.size(); ++i) {
          const at::Tensor& leaf = leaves[i].second;
          const LocalRange range = local_range(leaf);
          const torch::Tensor whole = 2 * rule_gradient(logical_sizes(leaf), step, i).flatten();
          leaf.mutable_grad() = whole.slice(0, range.begin, range.end).clone();
        }
        step % 2 == 0 ? optimizer->step(0.5) : optimizer->step(torch::tensor(0.5F));
      }
      const auto initial = plain->named_parameters();
      for (size_t i = 0; i < leaves.size(); ++i) {
        const auto& [name, leaf] = leaves[i];
        const LocalRange range = local_range(leaf);
        const torch::Tensor expected = by_rule(initial[name].detach(), i, rule).slice(0, range.begin, range.end);
        EXPECT_TRUE(torch::allclose(leaf.to(torch::kDouble), expected, 1e-5, 1e-6)) << name;
      }
    });
  }
}

TEST(Lion, FollowsItsFormula) {
  const LionOptions options{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  expect_rule([&](Tensors leaves) { return std::make_unique<Lion>(std::move(leaves), options); },
              [&](Element& it, double gradient) {
                const double direction = options.beta1 * it.first + (1 - options.beta1) * gradient;
                const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
                it.weight = it.weight * (1 - options.lr * options.weight_decay) - options.lr * sign;
                it.first = options.beta2 * it.first + (1 - options.beta2) * gradient;
              });
}

TEST(Lion, KeepsOneStateAndRefusesOptionsOutOfRange) {
  const Tensors leaves{torch::ones({5, 2}, torch::requires_grad())};
  Lion lion(leaves, LionOptions{});
  leaves[0].mutable_grad() = torch::zeros({5, 2});
  lion.step();
  EXPECT_EQ(lion.state_bytes(), 4 * 10);
  EXPECT_TRUE(torch::equal(leaves[0], torch::ones({5, 2})));  // the sign of 0
  EXPECT_THAT([&] { Lion(leaves, LionOptions{.lr = -1}); }, ThrowsMessage<Error>(HasSubstr("[Lion] lr")));
  EXPECT_THAT([&] { Lion(leaves, LionOptions{.beta2 = 1}); }, ThrowsMessage<Error>(HasSubstr("betas")));
}

// The reference's form, with its sum of weights.
TEST(ScheduleFreeAdamW, FollowsItsFormula) {
  for (const int64_t warmup : {0, 4}) {
    const ScheduleFreeAdamWOptions options{
        .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .warmup_steps = warmup};
    const auto rate = [=](int step) {
      return warmup == 0 ? options.lr : options.lr * std::min(1.0, step / static_cast<double>(warmup));
    };
    expect_rule([&](Tensors leaves) { return std::make_unique<ScheduleFreeAdamW>(std::move(leaves), options); },
                [&](Element& it, double gradient) {
                  if (++it.steps == 1) it.first = it.weight;
                  double sum = 0;
                  for (int step = 1; step <= it.steps; ++step) sum += rate(step) * rate(step);
                  const double lr = rate(it.steps), share = lr * lr / sum;
                  it.second = options.beta2 * it.second + (1 - options.beta2) * gradient * gradient;
                  const double size = std::sqrt(it.second / (1 - std::pow(options.beta2, it.steps))) + options.eps;
                  const double direction = gradient / size + options.weight_decay * it.weight;
                  it.weight += share * (it.first - it.weight) + lr * (options.beta1 * (1 - share) - 1) * direction;
                  it.first -= lr * direction;
                });
  }
}

// With one learning rate the average is that of all iterates after the first.
TEST(ScheduleFreeAdamW, TheModelHasTheAverageOrTheIterates) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [](const World& world) {
      const auto net = make_seeded(12, [] { return std::make_shared<RuleNet>(); });
      fully_shard(*net->layers, Mesh::shard(world), {.precision = Precision::bf16()});
      fully_shard(*net, Mesh::shard(world), {.precision = Precision::bf16()});
      const Tensors leaves = parameters(*net);
      const ScheduleFreeAdamWOptions options{.lr = 0.05};
      ScheduleFreeAdamW optimizer(leaves, options);
      Tensors iterates, averages;
      for (const torch::Tensor& leaf : leaves) {
        iterates.push_back(leaf.detach().clone());
        averages.push_back(torch::zeros_like(leaf.detach()));
      }
      for (int step = 0; step < 4; ++step) {
        for (const torch::Tensor& leaf : leaves)
          leaf.mutable_grad() = torch::full_like(leaf.detach(), step < 2 ? 1 : -3);
        optimizer.step();
        // y = (1 - beta1) z + beta1 x, and x is the mean of the z.
        for (size_t i = 0; i < leaves.size(); ++i) {
          const torch::Tensor before = averages[i].clone();
          const double n = step + 1;
          iterates[i] = (leaves[i].detach() - 0.9 * before * (n - 1) / n) / (0.1 + 0.9 / n);
          averages[i] = (before * (n - 1) + iterates[i]) / n;
        }
      }
      Tensors trained;
      for (const torch::Tensor& leaf : leaves) trained.push_back(leaf.detach().clone());
      optimizer.use_average();
      optimizer.use_average();
      for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(torch::allclose(leaves[i], averages[i], 1e-4, 1e-5)) << i;
      const StateDict gathered = full_state_dict(*net);  // what a forward would read, too
      EXPECT_EQ(gathered.tensors.size(), 5);
      EXPECT_THAT([&] { optimizer.step(); }, ThrowsMessage<Error>(HasSubstr("use_iterates()")));
      optimizer.use_iterates();
      for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(torch::equal(leaves[i], trained[i])) << i;
      optimizer.step();
    });
  }
  EXPECT_THAT([&] { ScheduleFreeAdamW(Tensors{}, ScheduleFreeAdamWOptions{.beta1 = 0}); },
              ThrowsMessage<Error>(HasSubstr("betas")));
}

using MakeRule = std::function<std::unique_ptr<FlatOptimizer>(Tensors)>;

std::vector<MakeRule> one_pass_rules() {
  return {[](Tensors leaves) {
            return std::make_unique<Lion>(std::move(leaves), LionOptions{.lr = 0.01, .weight_decay = 0.1});
          },
          [](Tensors leaves) {
            const ScheduleFreeAdamWOptions options{.lr = 0.05, .weight_decay = 0.1};
            return std::make_unique<ScheduleFreeAdamW>(std::move(leaves), options);
          }};
}

// Main weights of a model in bf16 after steps with given gradients.
std::map<std::string, at::Tensor> trained_on(int num_ranks, const MakeRule& make) {
  std::map<std::string, at::Tensor> result;
  run_ranks(num_ranks, [&](const World& world) {
    const auto net = make_seeded(12, [] { return std::make_shared<RuleNet>(); });
    fully_shard(*net->layers, Mesh::shard(world), {.precision = Precision::bf16()});
    fully_shard(*net, Mesh::shard(world), {.precision = Precision::bf16()});
    const Tensors leaves = parameters(*net);
    const auto optimizer = make(leaves);
    for (int step = 0; step < 4; ++step) {
      for (size_t i = 0; i < leaves.size(); ++i) {
        const LocalRange range = local_range(leaves[i]);
        const torch::Tensor whole = rule_gradient(logical_sizes(leaves[i]), step, i).flatten();
        leaves[i].mutable_grad() = whole.slice(0, range.begin, range.end).clone();
      }
      optimizer->step(0.3);
    }
    const StateDict whole = full_state_dict(*net);
    if (world.rank == 0) result = whole.tensors;
  });
  return result;
}

TEST(OnePassRules, HaveTheSameBitsOnAnyNumberOfRanks) {
  for (const MakeRule& make : one_pass_rules()) {
    const auto expected = trained_on(1, make);
    EXPECT_EQ(expected.size(), 5);
    for (const int num_ranks : {2, 3}) {
      for (const auto& [name, tensor] : trained_on(num_ranks, make)) {
        EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name << " on " << num_ranks << " ranks";
      }
    }
  }
}

TEST(OnePassRules, SkipWhatOverflowed) {
  run_ranks(2, [](const World& world) {
    for (const MakeRule& make : one_pass_rules()) {
      const auto net = make_seeded(12, [] { return std::make_shared<RuleNet>(); });
      fully_shard(*net->layers, Mesh::shard(world));
      fully_shard(*net, Mesh::shard(world));
      const auto optimizer = make(parameters(*net));
      GradScaler scaler;
      const auto step = [&](double factor) {
        scaler.scale(net->layers->forward(torch::ones({2, 5})).square().sum() * factor).backward();
        const ScaledStep taken = scaler.step(*optimizer);
        scaler.update();
        zero_grad(*net);
        return taken;
      };
      const auto everything = [&] {
        Tensors all;
        for (const at::Tensor& leaf : parameters(*net->layers)) {
          all.push_back(leaf.detach().clone());
          for (const auto& state : optimizer->flat_parameters().states_of(leaf)) all.push_back(state.tensor.clone());
        }
        return all;
      };
      EXPECT_EQ(step(1), ScaledStep::kTaken);
      const Tensors before = everything();
      EXPECT_EQ(step(world.rank == 0 ? INFINITY : 1), ScaledStep::kSkipped);
      const Tensors after = everything();
      ASSERT_EQ(after.size(), before.size());
      for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
      EXPECT_EQ(optimizer->num_steps(), 1);
      EXPECT_EQ(step(1), ScaledStep::kTaken);
    }
  });
}

TEST(SGD, FollowsNesterovsFormula) {
  const SGDOptions options{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.02, .nesterov = true};
  expect_rule([&](Tensors leaves) { return std::make_unique<SGD>(std::move(leaves), options); },
              [&](Element& it, double gradient) {
                const double full = gradient + options.weight_decay * it.weight;
                it.first = options.momentum * it.first + full;
                it.weight -= options.lr * (full + options.momentum * it.first);
              });
}

// 300 updates of a tenth of a bf16 weight's last digit: each alone is rounded away.
torch::Tensor small_gradient(int step, at::IntArrayRef sizes) {
  return rule_gradient(sizes, step, 7).mul_(0.1).add_(1).to(torch::kBFloat16);
}

constexpr int kSmallSteps = 300;
constexpr AdamWOptions kSmall{.lr = 1e-4,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .weight_decay = 0.1,
                              .exp_avg_dtype = at::kFloat,
                              .exp_avg_sq_dtype = at::kFloat,
                              .digits = WeightDigits::kCompensated};

// In double precision, from weights of bf16.
torch::Tensor adamw_by_formula(const torch::Tensor& initial) {
  torch::Tensor weight = initial.to(torch::kDouble).clone(), m = torch::zeros_like(weight),
                v = torch::zeros_like(weight);
  for (int step = 0; step < kSmallSteps; ++step) {
    const torch::Tensor gradient = small_gradient(step, initial.sizes()).to(torch::kDouble);
    m = kSmall.beta1 * m + (1 - kSmall.beta1) * gradient;
    v = kSmall.beta2 * v + (1 - kSmall.beta2) * gradient.square();
    const double first = 1 - std::pow(kSmall.beta1, step + 1), second = 1 - std::pow(kSmall.beta2, step + 1);
    weight =
        weight * (1 - kSmall.lr * kSmall.weight_decay) - kSmall.lr * (m / first) / ((v / second).sqrt() + kSmall.eps);
  }
  return weight;
}

TEST(AdamW, CompensatedHalvesLearnFromUpdatesBelowTheirLastDigit) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      const auto net = make_seeded(12, [] { return std::make_shared<RuleNet>(); });
      net->to(torch::kBFloat16);
      const torch::Tensor initial = net->last.detach().clone(), expected = adamw_by_formula(initial);
      fully_shard(*net, Mesh::shard(world));
      AdamW optimizer(parameters(*net), kSmall);
      for (const auto& [name, leaf] : named_parameters(*net)) {
        if (name != "last") continue;
        const LocalRange range = local_range(leaf);
        for (int step = 0; step < kSmallSteps; ++step) {
          leaf.mutable_grad() = small_gradient(step, initial.sizes()).slice(0, range.begin, range.end).clone();
          optimizer.step();
        }
        const torch::Tensor mine = expected.slice(0, range.begin, range.end);
        const torch::Tensor bound = mine.abs() / 256 + 1e-4;  // the last rounding, and that of what was kept
        EXPECT_TRUE(((leaf.to(torch::kDouble) - mine).abs() <= bound).all().item<bool>()) << size << " ranks";
      }
      EXPECT_TRUE(((expected - initial).abs() > 0.02).all().item<bool>());
    });
  }
}

TEST(AdamW, HalvesAreRefusedWithoutTheirDigits) {
  const Tensors leaves{torch::ones({5}, torch::dtype(torch::kBFloat16).requires_grad(true))};
  EXPECT_THAT([&] { AdamW(leaves, AdamWOptions{}); }, ThrowsMessage<Error>(HasSubstr("WeightDigits::kCompensated")));
  AdamWOptions options;
  options.digits = WeightDigits::kCompensated;
  AdamW optimizer(leaves, options);
  leaves[0].mutable_grad() = torch::ones({5}, torch::kBFloat16);
  optimizer.step(1.0);
  EXPECT_EQ(optimizer.state_bytes(), 3 * 2 * 5);
}

}  // namespace
}  // namespace fsdp
