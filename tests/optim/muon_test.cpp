// fsdp::Muon against the formulas of torch.optim.Muon (PyTorch 2.11), on plain tensors and over shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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

// ---- the formulas, one matrix at a time

torch::Tensor muon_polar(const torch::Tensor& update, const std::vector<OddQuintic>& iterations, torch::Dtype dtype,
                         double eps) {
  torch::Tensor x = update.to(dtype).clone();
  const bool tall = update.size(0) > update.size(1);
  if (tall) x = x.t();
  x.div_(x.norm().clamp(eps));
  for (const auto& [a, b, c] : iterations) {
    const torch::Tensor gram = x.matmul(x.t());
    x = torch::addmm(x, torch::addmm(gram, gram, gram, b, c), x, a);
  }
  return tall ? x.t() : x;
}

// One matrix of torch.optim.Muon's single-tensor loop.
struct MuonReference {
  torch::Tensor weight;
  torch::Tensor momentum = torch::zeros_like(weight);

  void step(const torch::Tensor& gradient, const MuonOptions& options) {
    momentum.lerp_(gradient, 1 - options.momentum);
    const torch::Tensor update = options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum;
    const torch::Tensor turned =
        muon_polar(update, quintics(options.by, options.iterations), options.dtype, options.eps);
    const auto rows = static_cast<double>(weight.size(0)), cols = static_cast<double>(weight.size(1));
    const double ratio = options.scale == MuonScale::kOriginal ? std::sqrt(std::max(1.0, rows / cols))
                                                               : 0.2 * std::sqrt(std::max(rows, cols));
    weight.mul_(1 - options.lr * options.weight_decay);
    weight.add_(turned, -options.lr * ratio);
  }
};

std::vector<MuonOptions> muon_variants() {
  MuonOptions adam{.lr = 2e-2, .scale = MuonScale::kMatchRmsAdamW, .dtype = torch::kFloat};
  MuonOptions plain{.lr = 1e-2, .momentum = 0.8, .nesterov = false, .weight_decay = 0.3, .dtype = torch::kFloat};
  MuonOptions polar{.lr = 1e-2, .by = OrthogonalizeBy::kPolarExpress, .iterations = 9, .dtype = torch::kFloat};
  return {{.lr = 1e-2}, adam, plain, polar};
}

torch::Tensor gradient_of(at::IntArrayRef sizes, int step, size_t parameter) {
  return torch::randn(sizes, generator(911 + 100 * static_cast<uint64_t>(step) + parameter));
}

TEST(Muon, FollowsTheFormulaOnPlainTensors) {
  const std::vector<std::vector<int64_t>> shapes = {{8, 8}, {5, 17}, {33, 4}, {1, 6}, {64, 48}};
  for (const MuonOptions& options : muon_variants()) {
    Tensors leaves;
    std::vector<MuonReference> references;
    for (size_t i = 0; i < shapes.size(); ++i) {
      leaves.push_back(torch::randn(shapes[i], generator(i)).requires_grad_());
      references.push_back({leaves.back().detach().clone()});
    }
    Muon optimizer(leaves, options);
    for (int step = 0; step < 6; ++step) {
      for (size_t i = 0; i < leaves.size(); ++i) {
        leaves[i].mutable_grad() = 2 * gradient_of(shapes[i], step, i);
        references[i].step(gradient_of(shapes[i], step, i), options);
      }
      optimizer.step(/*gradient_factor=*/0.5);
      leaves.front().mutable_grad() = torch::Tensor();
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(torch::allclose(leaves[i], references[i].weight, 1e-6, 1e-6)) << i << ", lr " << options.lr;
    }
  }
}

// Each head as a matrix of its own.
TEST(Muon, HeadsAreMatricesOfTheirOwn) {
  constexpr int64_t kRows = 4, kHeads = 3;
  for (const MuonOptions& options : muon_variants()) {
    Tensors leaves = {torch::randn({kHeads * kRows, 10}, generator(1)).requires_grad_(),
                      torch::randn({6, 5}, generator(2)).requires_grad_()};
    std::vector<MuonReference> heads;
    for (int64_t h = 0; h < kHeads; ++h)
      heads.push_back({leaves[0].detach().slice(0, h * kRows, (h + 1) * kRows).clone()});
    MuonReference whole{leaves[1].detach().clone()};
    Muon optimizer({.matrices = {leaves[1]}, .others = {}, .heads = {{{leaves[0]}, kRows}}}, options, AdamWOptions{});
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = gradient_of(leaves[i].sizes(), step, i);
      for (int64_t h = 0; h < kHeads; ++h)
        heads[static_cast<size_t>(h)].step(leaves[0].grad().slice(0, h * kRows, (h + 1) * kRows), options);
      whole.step(leaves[1].grad(), options);
      optimizer.step();
    }
    Tensors parts;
    for (const MuonReference& head : heads) parts.push_back(head.weight);
    EXPECT_TRUE(torch::allclose(leaves[0], torch::cat(parts), 1e-6, 1e-6)) << options.lr;
    EXPECT_TRUE(torch::allclose(leaves[1], whole.weight, 1e-6, 1e-6)) << options.lr;
  }
}

struct HeadsNet : torch::nn::Module {
  HeadsNet() {
    for (const char* name : {"q_proj", "k_proj", "o_proj"})
      register_module(name, torch::nn::Linear(torch::nn::LinearOptions(8, 12).bias(false)));
  }
};

TEST(Muon, SplitHeadsMovesProjectionsAndRefusesByName) {
  HeadsNet net;
  const MuonGroups groups = split_heads(muon_groups(net, 0.1), net, 4);
  EXPECT_EQ(groups.matrices.size(), 1u);
  EXPECT_TRUE(groups.matrices[0].is_same(net.named_parameters()["o_proj.weight"]));
  ASSERT_EQ(groups.heads.size(), 1u);
  EXPECT_EQ(groups.heads[0].matrices.size(), 2u);
  EXPECT_THAT([&] { split_heads(muon_groups(net, 0.1), net, 5); },
              ThrowsMessage<Error>(HasSubstr("heads of 5 rows: got 'q_proj.weight' with 12 rows")));
  EXPECT_THAT([&] { split_heads(muon_groups(net, 0.1), net, 4, {"query"}); },
              ThrowsMessage<Error>(HasSubstr("got no matrix called query")));
  const Tensors odd{torch::ones({7, 3}, torch::requires_grad())};
  EXPECT_THAT(
      [&] {
        Muon({.matrices = {}, .others = {}, .heads = {{odd, 4}}}, {}, AdamWOptions{});
      },
      ThrowsMessage<Error>(HasSubstr("heads of 4 rows, expected a matrix of whole heads")));
}

// Against the singular value decomposition in fp64.
TEST(Muon, TurnsSingularValuesToOne) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{24, 24}, {16, 40}, {40, 16}}) {
    const torch::Tensor matrix = torch::randn(sizes, generator(3)).to(torch::kDouble);
    const auto [u, s, vt] = torch::linalg_svd(matrix, /*full_matrices=*/false);
    const auto distance = [&, &u = u, &vt = vt](OrthogonalizeBy by, int steps) {
      const torch::Tensor turned = orthogonalize(matrix, quintics(by, steps), 1e-7, torch::kDouble);
      return (turned - u.matmul(vt)).abs().max().item<double>();
    };
    EXPECT_LT(distance(OrthogonalizeBy::kPolarExpress, 12), 1e-9);
    EXPECT_LT(distance(OrthogonalizeBy::kPolarExpress, 6), distance(OrthogonalizeBy::kNewtonSchulz, 6));
    const torch::Tensor turned =
        orthogonalize(matrix, quintics(OrthogonalizeBy::kNewtonSchulz, 5), 1e-7, torch::kDouble);
    const torch::Tensor values = std::get<1>(torch::linalg_svd(turned, false));
    // A square one of random numbers has singular values near 0, which take more iterations.
    if (sizes[0] != sizes[1]) {
      EXPECT_GT(values.min().item<double>(), 0.3);
    }
    EXPECT_LT(values.max().item<double>(), 1.25);
  }
}

// ---- over shards

struct MuonNet : torch::nn::Module {
  static constexpr int64_t kWidth = 8;
  static constexpr int64_t kWords = 11;

  MuonNet() {
    embed = register_module("embed", torch::nn::Embedding(kWords, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
                                              torch::nn::Linear(kWidth, 3 * kWidth), torch::nn::Tanh(),
                                              torch::nn::Linear(3 * kWidth, kWidth),
                                              torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
    head = register_module("head", torch::nn::Linear(kWidth, kWords));
  }
  torch::Tensor loss(const torch::Tensor& words) {
    torch::Tensor x = embed(words);
    for (const auto& block : *blocks) x = x + block->as<torch::nn::Sequential>()->forward(x);
    return torch::nn::functional::cross_entropy(head(x), words.flip(0));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<MuonNet> make_muon_net() {
  return make_seeded(8, [] { return std::make_shared<MuonNet>(); });
}

constexpr LayoutOptions kOwned{.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};

Unit shard_muon_net(MuonNet& net, const Mesh& mesh, const LayoutOptions& layout = kOwned,
                    Strategy strategy = Strategy::kOptimGradsParams) {
  ShardOptions options;
  options.strategy = strategy;
  ShardOptions block_options = options;
  block_options.layout = layout;
  for (const auto& block : *net.blocks) fully_shard(*block, mesh, block_options);
  return fully_shard(net, mesh, options);
}

constexpr MuonOptions kMuon{.lr = 2e-2};
constexpr AdamWOptions kBeside{.lr = 1e-2, .weight_decay = 0.1};

torch::Tensor words_of(int step) {
  return torch::randint(MuonNet::kWords, {24}, generator(70 + static_cast<uint64_t>(step)), torch::kLong);
}

// Gradients of whole parameters, cut for the leaves.
void give_slices(const std::vector<std::pair<std::string, at::Tensor>>& leaves, int step) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& leaf = leaves[i].second;
    const auto sizes = logical_sizes(leaf);
    const LocalRange range = local_range(leaf);
    const torch::Tensor whole = gradient_of(sizes, step, i).flatten();
    leaf.mutable_grad() = whole.slice(0, range.begin, range.end).clone().view(leaf.sizes());
  }
}

void train_by_given_gradients(MuonNet& net, int steps) {
  Muon optimizer(muon_groups(net, kBeside.weight_decay), kMuon, kBeside);
  for (int step = 0; step < steps; ++step) {
    give_slices(named_parameters(net), step);
    optimizer.step();
  }
}

TEST(Muon, HasTheSameBitsOnAnyNumberOfRanks) {
  const auto alone = make_muon_net();  // not sharded
  std::map<std::string, torch::Tensor> expected;
  run_ranks(1, [&](const World&) { train_by_given_gradients(*alone, 4); });
  for (const auto& item : alone->named_parameters()) expected[item.key()] = item.value().detach();
  for (const int size : {1, 2, 3, 8}) {
    SCOPED_TRACE(size);
    run_ranks(size, [&](const World& world) {
      const auto net = make_muon_net();
      shard_muon_net(*net, Mesh::shard(world));
      train_by_given_gradients(*net, 4);
      for (const auto& [name, leaf] : named_parameters(*net)) {
        const LocalRange range = local_range(leaf);
        const torch::Tensor slice = expected.at(name).flatten().slice(0, range.begin, range.end);
        EXPECT_TRUE(torch::equal(leaf.detach().flatten(), slice)) << name;
      }
    });
  }
}

// Backward, reduction, clipping and the step, against one process with the formulas.
TEST(Muon, TrainsAsTheUnshardedModel) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(c10::str(name(strategy), " on ", size));
      run_ranks(size, [&](const World& world) {
        const MuonOptions options{.lr = 2e-2, .scale = MuonScale::kMatchRmsAdamW, .dtype = torch::kFloat};
        const auto net = make_muon_net();
        const auto plain = make_muon_net();
        shard_muon_net(*net, Mesh::shard(world), kOwned, strategy);
        Muon optimizer(muon_groups(*net, kBeside.weight_decay), options, kBeside);
        std::map<std::string, MuonReference> matrices;
        std::vector<torch::optim::OptimizerParamGroup> others;
        for (const double decay : {kBeside.weight_decay, 0.0}) {
          others.emplace_back(Tensors{}, std::make_unique<torch::optim::AdamWOptions>(
                                             torch::optim::AdamWOptions(kBeside.lr).weight_decay(decay)));
        }
        for (const auto& item : plain->named_parameters()) {
          const bool is_block = item.key().rfind("blocks", 0) == 0;
          if (is_block && item.value().dim() == 2) {
            matrices.emplace(item.key(), MuonReference{item.value().detach()});
          } else {
            others[item.value().dim() == 2 ? 0 : 1].params().push_back(item.value());
          }
        }
        torch::optim::AdamW adamw(std::move(others), torch::optim::AdamWOptions());
        for (int step = 0; step < 5; ++step) {
          const torch::Tensor loss = net->loss(words_of(step));
          const torch::Tensor expected = plain->loss(words_of(step));
          EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
          loss.backward();
          expected.backward();
          clip_grad_norm_(*net, 0.5);
          torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
          optimizer.step();
          adamw.step();
          const torch::NoGradGuard no_grad;
          for (const auto& item : plain->named_parameters()) {
            if (matrices.count(item.key()) > 0) matrices.at(item.key()).step(item.value().grad(), options);
          }
          zero_grad(*net);
          plain->zero_grad();
        }
      });
    }
  }
}

TEST(Muon, StateLiesWithTheOwner) {
  for (const int size : {1, 2, 3, 8}) {
    run_ranks(size, [](const World& world) {
      const auto net = make_muon_net();
      shard_muon_net(*net, Mesh::shard(world));
      Muon optimizer(muon_groups(*net, 0.1), kMuon, kBeside);
      EXPECT_EQ(optimizer.state_bytes(), 0);
      net->loss(words_of(0)).backward();
      optimizer.step();
      int64_t matrices = 0, others = 0;
      for (const auto& [name, leaf] : named_parameters(*net)) {
        if (name.rfind("blocks", 0) != 0) continue;
        const bool is_matrix = logical_sizes(leaf).size() == 2;
        (is_matrix ? matrices : others) += leaf.numel();
        const bool is_whole_or_none = leaf.numel() == 0 || local_range(leaf).end - local_range(leaf).begin ==
                                                               c10::multiply_integers(logical_sizes(leaf));
        EXPECT_TRUE(is_whole_or_none) << name;
      }
      // The root has two moments of its whole shard: pieces of all its parameters.
      const int64_t root = optimizer.state_bytes() - 4 * matrices - 8 * others;
      const int64_t root_numel = MuonNet::kWords * (2 * MuonNet::kWidth + 1);
      EXPECT_GE(root, 8 * (root_numel / world.size));
      EXPECT_LE(root, 8 * (root_numel / world.size + 16) + 8 * 16 * 8);
    });
  }
}

TEST(Muon, RefusesByNameWhatItCannotUpdate) {
  run_ranks(3, [](const World& world) {
    const auto net = make_muon_net();
    shard_muon_net(*net, Mesh::shard(world), LayoutOptions{});
    EXPECT_THAT([&] { Muon(muon_groups(*net, 0.1), kMuon, kBeside); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr("'blocks.0.1.weight'"), HasSubstr("is cut"),
                                                      HasSubstr("layout::Granularity::kTensor"))));
  });
  const Tensors vector{torch::ones({3}, torch::requires_grad())};
  EXPECT_THAT([&] { Muon(vector, kMuon); }, ThrowsMessage<Error>(HasSubstr("expected a matrix")));
  const Tensors matrix{torch::ones({3, 3}, torch::requires_grad())};
  EXPECT_THAT([&] { Muon(matrix, {.momentum = 1}); }, ThrowsMessage<Error>(HasSubstr("momentum")));
  EXPECT_THAT([&] { Muon(matrix, {.iterations = 0}); }, ThrowsMessage<Error>(HasSubstr("iterations")));
  EXPECT_THAT([&] { Muon(matrix, {.dtype = torch::kHalf}); }, ThrowsMessage<Error>(HasSubstr("bf16, fp32")));
}

TEST(Muon, SkipsWhatOverflowedAsAdamWDoes) {
  run_ranks(2, [](const World& world) {
    const auto net = make_muon_net();
    shard_muon_net(*net, Mesh::shard(world));
    Muon optimizer(muon_groups(*net, 0.1), kMuon, kBeside);
    GradScaler scaler;
    const auto step = [&](double factor) {
      scaler.scale(net->loss(words_of(world.rank)) * factor).backward();
      const ScaledStep taken = scaler.step(optimizer);
      scaler.update();
      zero_grad(*net);
      return taken;
    };
    EXPECT_EQ(step(1), ScaledStep::kTaken);
    const torch::Tensor before = parameters(*net).front().detach().clone();
    EXPECT_EQ(step(world.rank == 0 ? INFINITY : 1), ScaledStep::kSkipped);
    EXPECT_TRUE(torch::equal(parameters(*net).front(), before));
    EXPECT_EQ(optimizer.num_steps(), 1);
    EXPECT_EQ(step(1), ScaledStep::kTaken);
  });
}

TEST(Muon, BalancedOwnersNeedWholeTensors) {
  run_ranks(1, [](const World& world) {
    const auto net = make_muon_net();
    EXPECT_THAT([&] { shard_muon_net(*net, Mesh::shard(world), {.owners = layout::Owners::kBalanced}); },
                ThrowsMessage<Error>(HasSubstr("Granularity::kTensor")));
  });
}

}  // namespace
}  // namespace fsdp
