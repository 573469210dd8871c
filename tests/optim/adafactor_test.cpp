// fsdp::Adafactor against numbers of torch.optim.Adafactor, against its formulas in double precision, and over shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>

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

constexpr AdafactorOptions kFactored{.lr = 2e-2, .weight_decay = 0.1};

// ---- one parameter

torch::Tensor counted(at::IntArrayRef sizes, int64_t factor, int64_t shift, int64_t modulus) {
  const torch::Tensor steps = torch::arange(c10::multiply_integers(sizes), torch::kLong);
  return ((steps * factor + shift) % modulus - modulus / 2).to(torch::kDouble).view(sizes);
}

// PyTorch 2.15, torch.optim.Adafactor(foreach=False), three steps in fp64.
TEST(Adafactor, HasTheNumbersOfTorch) {
  struct Golden {
    std::vector<int64_t> sizes;
    AdafactorOptions options;
    std::vector<double> weights;
  };
  const std::vector<Golden> goldens = {
      {{2, 3},
       {.lr = 0.02, .weight_decay = 0.1},
       {-0.474080545867, 0.20218023823, -0.181889077123, 0.509573155327, 0.101364047493, -0.288993475525}},
      {{2, 2, 3},
       {.lr = 0.02},
       {-0.477001166951, 0.203447014494, -0.183016589766, 0.512647242053, 0.101951696359, -0.290713942152,
        0.408338678495, 0.00376320430156, -0.380216482779, 0.288348977798, -0.0883292225343, -0.492363542538}},
      {{4}, {.lr = 0.05}, {-0.458143711569, 0.17823508254, -0.174151095898, 0.520659583056}}};
  for (const Golden& golden : goldens) {
    torch::Tensor weight = (0.1 * counted(golden.sizes, 7, 0, 11) + 0.01).requires_grad_();
    Adafactor optimizer({weight}, golden.options);
    for (int step = 0; step < 3; ++step) {
      weight.mutable_grad() = 0.3 * counted(golden.sizes, 5, 3 * step, 13);
      optimizer.step();
    }
    const torch::Tensor expected = torch::tensor(golden.weights, torch::kDouble).view(golden.sizes);
    EXPECT_TRUE(torch::allclose(weight, expected, 1e-10, 1e-11)) << weight - expected;
  }
}

// In double precision, whole matrices at a time.
struct AdafactorReference {
  torch::Tensor weight;  // [.., R, C] or [n]
  torch::Tensor rows = {}, columns = {}, moment = {};
  int steps = 0;

  static torch::Tensor mean_square(const torch::Tensor& x) { return x.square().mean().sqrt(); }

  void step(const torch::Tensor& gradient, const AdafactorOptions& options) {
    const double newest = std::pow(++steps, options.beta2_decay), eps1 = options.eps1.value_or(0x1p-23);
    const double size = std::max(options.eps2, mean_square(weight).item<double>()) *
                        std::min(options.lr, 1 / std::sqrt(static_cast<double>(steps)));
    const torch::Tensor squares = gradient.square();
    const auto carry_on = [&](torch::Tensor& mean, const torch::Tensor& now) {
      mean = mean.defined() ? mean * (1 - newest) + now * newest : now * newest;
    };
    torch::Tensor second;
    if (weight.dim() >= 2) {
      carry_on(rows, squares.mean(-1, true));
      carry_on(columns, squares.mean(-2, true));
      second = rows.matmul(columns) / rows.mean(-2, true).clamp_min(eps1);
    } else {
      carry_on(moment, squares);
      second = moment;
    }
    const torch::Tensor update = gradient / second.clamp_min(eps1 * eps1).sqrt();
    const double length = std::max(1.0, mean_square(update).item<double>() / options.clip);
    const double rate = options.rate == AdafactorRate::kAbsolute ? options.lr : size;
    weight = weight * (1 - options.lr * options.weight_decay) - update * (rate / length);
  }
};

torch::Tensor factored_gradient(at::IntArrayRef sizes, int step, size_t parameter) {
  torch::Tensor gradient = torch::randn(sizes, generator(611 + 100 * static_cast<uint64_t>(step) + parameter));
  return step == 2 ? gradient * 40 : gradient;  // is clipped
}

// Also matrices of several pieces, of one row or column, and with rows of zeros.
TEST(Adafactor, FollowsItsFormula) {
  const std::vector<std::vector<int64_t>> shapes = {{8, 8}, {5, 17},      {700, 50}, {3, 20000}, {1, 6}, {6, 1},
                                                    {1, 1}, {2, 3, 5, 4}, {40000},   {1},        {}};
  AdafactorOptions plain{.lr = 5e-2, .beta2_decay = -0.5, .eps1 = 1e-3, .clip = 2};
  AdafactorOptions absolute{.lr = 1e-3, .weight_decay = 0.2, .rate = AdafactorRate::kAbsolute};
  for (const AdafactorOptions& options : {kFactored, plain, absolute}) {
    Tensors leaves;
    std::vector<AdafactorReference> references;
    for (size_t i = 0; i < shapes.size(); ++i) {
      leaves.push_back(torch::randn(shapes[i], generator(i)).requires_grad_());
      references.push_back({leaves.back().detach().to(torch::kDouble)});
    }
    Adafactor optimizer(leaves, options);
    for (int step = 0; step < 5; ++step) {
      for (size_t i = 0; i < leaves.size(); ++i) {
        torch::Tensor gradient = factored_gradient(shapes[i], step, i);
        if (shapes[i].size() >= 2) gradient.select(-2, 0).zero_();
        leaves[i].mutable_grad() = 2 * gradient;
        references[i].step(gradient.to(torch::kDouble), options);
      }
      step % 2 == 0 ? optimizer.step(0.5) : optimizer.step(torch::tensor(0.5F));
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(torch::allclose(leaves[i].to(torch::kDouble), references[i].weight, 1e-5, 2e-6))
          << torch::IntArrayRef(shapes[i]) << ", lr " << options.lr << ": "
          << (leaves[i] - references[i].weight).abs().max().item<double>();
    }
  }
}

// ---- over shards

struct FactoredNet : torch::nn::Module {
  static constexpr int64_t kWidth = 8, kWords = 11;

  FactoredNet() {
    embed = register_module("embed", torch::nn::Embedding(kWords, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(kWidth, 3 * kWidth), torch::nn::Tanh(),
                                              torch::nn::Linear(3 * kWidth, kWidth)));
    }
  }
  torch::Tensor loss(const torch::Tensor& words) {
    torch::Tensor x = embed(words);
    for (const auto& block : *blocks) x = x + block->as<torch::nn::Sequential>()->forward(x);
    return torch::nn::functional::cross_entropy(x.matmul(embed->weight.t()), words.flip(0));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks{nullptr};
};

std::shared_ptr<FactoredNet> make_factored_net() {
  return make_seeded(9, [] { return std::make_shared<FactoredNet>(); });
}

void shard_factored_net(FactoredNet& net, const Mesh& mesh, ShardOptions options = {}) {
  ShardOptions of_blocks = options;
  of_blocks.layout = {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
  for (const auto& block : *net.blocks) fully_shard(*block, mesh, of_blocks);
  fully_shard(net, mesh, options);
}

torch::Tensor factored_words(int step) {
  return torch::randint(FactoredNet::kWords, {24}, generator(50 + static_cast<uint64_t>(step)), torch::kLong);
}

void train_by_factored_gradients(FactoredNet& net) {
  Adafactor optimizer(adafactor_groups(net, 0.1), kFactored, AdamWOptions{.lr = 1e-2});
  const auto leaves = named_parameters(net);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor& leaf = leaves[i].second;
      const LocalRange range = local_range(leaf);
      const torch::Tensor whole = factored_gradient(logical_sizes(leaf), step, i).flatten();
      leaf.mutable_grad() = whole.slice(0, range.begin, range.end).clone().view(leaf.sizes());
    }
    optimizer.step();
  }
}

TEST(Adafactor, HasTheSameBitsOnAnyNumberOfRanks) {
  const auto alone = make_factored_net();
  run_ranks(1, [&](const World&) { train_by_factored_gradients(*alone); });
  const auto expected = alone->named_parameters();
  for (const int size : {1, 2, 3, 8}) {
    SCOPED_TRACE(size);
    run_ranks(size, [&](const World& world) {
      const auto net = make_factored_net();
      shard_factored_net(*net, Mesh::shard(world));
      train_by_factored_gradients(*net);
      for (const auto& [name, leaf] : named_parameters(*net)) {
        const LocalRange range = local_range(leaf);
        const torch::Tensor slice = expected[name].detach().flatten().slice(0, range.begin, range.end);
        EXPECT_TRUE(torch::equal(leaf.detach().flatten(), slice)) << name;
      }
    });
  }
}

// Backward, reduction, clipping and the step, with weights that are gathered in bf16 too.
TEST(Adafactor, TrainsAsTheFormulaOfTheUnshardedModel) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(c10::str(name(strategy), " on ", size));
      run_ranks(size, [&](const World& world) {
        const auto net = make_factored_net();
        const auto plain = make_factored_net();
        shard_factored_net(*net, Mesh::shard(world), {.strategy = strategy});
        const AdamWOptions beside{.lr = 1e-2};
        Adafactor optimizer(adafactor_groups(*net, 0), {.lr = 2e-2}, beside);
        std::map<std::string, AdafactorReference> matrices;
        Tensors others;
        for (const auto& item : plain->named_parameters()) {
          if (item.value().dim() == 2 && item.key() != "embed.weight") {
            matrices.emplace(item.key(), AdafactorReference{item.value().detach().to(torch::kDouble)});
          } else {
            others.push_back(item.value());
          }
        }
        torch::optim::AdamW adamw(others, torch::optim::AdamWOptions(beside.lr).weight_decay(0));
        for (int step = 0; step < 5; ++step) {
          const torch::Tensor loss = net->loss(factored_words(step));
          const torch::Tensor expected = plain->loss(factored_words(step));
          EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
          loss.backward();
          expected.backward();
          clip_grad_norm_(*net, 0.5);
          torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
          optimizer.step();
          adamw.step();
          const torch::NoGradGuard no_grad;
          for (auto& item : plain->named_parameters()) {
            if (matrices.count(item.key()) == 0) continue;
            AdafactorReference& matrix = matrices.at(item.key());
            matrix.step(item.value().grad().to(torch::kDouble), {.lr = 2e-2});
            item.value().copy_(matrix.weight);
          }
          zero_grad(*net);
          plain->zero_grad();
        }
      });
    }
  }
}

// R + C numbers of a matrix, with its owner, and a copy in bf16 that is written along.
TEST(Adafactor, KeepsRowsAndColumnsWithTheOwner) {
  for (const int size : {1, 2, 3, 8}) {
    run_ranks(size, [](const World& world) {
      const auto net = make_factored_net();
      shard_factored_net(*net, Mesh::shard(world), {.precision = Precision::bf16()});
      Tensors blocks;
      for (const auto& [name, leaf] : named_parameters(*net)) {
        if (name.rfind("blocks", 0) == 0) blocks.push_back(leaf);
      }
      Adafactor optimizer(blocks, AdafactorOptions{});
      net->loss(factored_words(0)).backward();
      optimizer.step();
      int64_t expected = 0;
      for (const at::Tensor& leaf : blocks) {
        const std::vector<int64_t> sizes = logical_sizes(leaf);
        if (leaf.numel() > 0) expected += 4 * (sizes.size() == 2 ? sizes[0] + sizes[1] : sizes[0]);
      }
      EXPECT_EQ(optimizer.state_bytes(), expected);
    });
  }
}

TEST(Adafactor, RefusesByNameWhatItCannotUpdate) {
  run_ranks(3, [](const World& world) {
    const auto net = make_factored_net();
    for (const auto& block : *net->blocks) fully_shard(*block, Mesh::shard(world));
    fully_shard(*net, Mesh::shard(world));
    EXPECT_THAT([&] { Adafactor(adafactor_groups(*net, 0), {}, AdamWOptions{}); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr("[Adafactor] 'blocks.0.0.weight'"), HasSubstr("is cut"),
                                                      HasSubstr("layout::Granularity::kTensor"))));
  });
  const Tensors matrix{torch::ones({3, 3}, torch::requires_grad())};
  const auto refuses = [&](const AdafactorOptions& options, const char* part) {
    EXPECT_THAT([&] { Adafactor(matrix, options); }, ThrowsMessage<Error>(HasSubstr(part)));
  };
  refuses({.lr = -1}, "[Adafactor] lr");
  refuses({.beta2_decay = 0.8}, "beta2_decay: got 0.8");
  refuses({.eps1 = 0}, "eps: got 0");
  refuses({.clip = 0}, "clip: got 0");
  EXPECT_THAT([&] { Adafactor(Tensors{torch::Tensor()}, {}); }, ThrowsMessage<Error>(HasSubstr("undefined")));
}

TEST(Adafactor, SkipsWhatOverflowed) {
  run_ranks(2, [](const World& world) {
    const auto net = make_factored_net();
    shard_factored_net(*net, Mesh::shard(world));
    Adafactor optimizer(adafactor_groups(*net, 0.1), kFactored, AdamWOptions{});
    GradScaler scaler;
    const auto step = [&](double factor) {
      scaler.scale(net->loss(factored_words(world.rank)) * factor).backward();
      const ScaledStep taken = scaler.step(optimizer);
      scaler.update();
      zero_grad(*net);
      return taken;
    };
    EXPECT_EQ(step(1), ScaledStep::kTaken);
    Tensors before;
    for (const at::Tensor& leaf : parameters(*net)) before.push_back(leaf.detach().clone());
    EXPECT_EQ(step(world.rank == 0 ? INFINITY : 1), ScaledStep::kSkipped);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(parameters(*net)[i], before[i]));
    EXPECT_EQ(step(1), ScaledStep::kTaken);
  });
}

}  // namespace
}  // namespace fsdp
