// A model that is cut over "tp" and sharded trains as the whole one on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "fsdp/comm/connection.h"
#include "tests/parallel/cut_model.h"
#include "tests/support/close.h"

namespace fsdp::tensor_parallel_test {
namespace {

using parallel::parallelize;
using parallel::Ranks;
using parallel::Style;
using parallel::Tokens;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kRows = 8, kTokens = 8;  // rows: of all data ranks
constexpr double kRate = 0.05;

struct Layout {
  std::vector<MeshAxis> axes;
  Tokens tokens;
  at::ScalarType dtype;
  Strategy strategy = Strategy::kOptimGradsParams;
};

std::string text_of(const Layout& layout) {
  std::string text;
  for (const MeshAxis& axis : layout.axes) text += c10::str(axis.name, "=", axis.size, " ");
  return c10::str(text, layout.tokens == Tokens::kOwn ? "own tokens " : "all tokens ", layout.dtype, " ",
                  name(layout.strategy));
}

int ranks_of(const Layout& layout) {
  int ranks = 1;
  for (const MeshAxis& axis : layout.axes) ranks *= axis.size;
  return ranks;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{{"tp", 1}}, Tokens::kAll, at::kFloat},
      {{{"tp", 2}}, Tokens::kAll, at::kDouble},
      {{{"tp", 2}}, Tokens::kOwn, at::kDouble},
      {{{"tp", 4}}, Tokens::kAll, at::kFloat},
      {{{"tp", 8}}, Tokens::kOwn, at::kFloat},
      {{{"shard", 2}, {"tp", 2}}, Tokens::kAll, at::kDouble},
      {{{"shard", 2}, {"tp", 2}}, Tokens::kOwn, at::kFloat, Strategy::kOptimGrads},
      {{{"shard", 2}, {"tp", 2}}, Tokens::kOwn, at::kDouble, Strategy::kNoShard},
      {{{"shard", 4}, {"tp", 2}}, Tokens::kOwn, at::kDouble, Strategy::kOptim},
      {{{"shard", 2}, {"tp", 4}}, Tokens::kAll, at::kFloat},
      {{{"replicate", 2}, {"shard", 2}, {"tp", 2}}, Tokens::kOwn, at::kDouble, Strategy::kHybrid},
      {{{"replicate", 2}, {"shard", 2}, {"tp", 2}}, Tokens::kAll, at::kFloat, Strategy::kHybridOptim}};
  return all;
}

// Relative to the largest element of the tensor.
int64_t count_of(const torch::Tensor& targets) { return targets.ne(-100).sum().item<int64_t>(); }

// A step of both; every rank computes the whole one.
void expect_equal_steps(const World& world, const Layout& layout, int steps) {
  const Mesh mesh(world, layout.axes);
  const int data_ranks = mesh.size("replicate") * mesh.size("shard");
  const int data_rank = mesh.index("replicate") * mesh.size("shard") + mesh.index("shard");
  // fp64 shows that the sums are the right ones, fp32 that they are made in fp32: their order differs with the
  // processor.
  const double bound = layout.dtype == at::kDouble ? 1e-12 : 1e-5;
  const auto whole = make_whole_model(layout.dtype);
  const auto cut = make_cut_model(mesh, layout.tokens, layout.dtype);
  ShardOptions options;
  options.strategy = layout.strategy;
  Unit root = shard_cut_model(*cut, mesh, options);
  torch::optim::SGD whole_sgd(whole->parameters(), kRate), cut_sgd(parameters(*cut), kRate);
  for (int step = 0; step < steps; ++step) {
    const auto [ids, targets] = cut_batch(100 + static_cast<uint64_t>(step), kRows, kTokens);
    whole->zero_grad();
    const torch::Tensor expected = whole->loss(ids, targets) / count_of(targets);
    expected.backward();

    const int64_t rows = kRows / data_ranks;
    const torch::Tensor own_targets = targets.narrow(0, data_rank * rows, rows);
    zero_grad(*cut);
    root.set_gradient_scale(GradScale::per_token(count_of(own_targets)));
    const torch::Tensor loss = cut->loss(ids.narrow(0, data_rank * rows, rows), own_targets);
    loss.backward();
    const torch::Tensor of_all = sum_over_ranks(world, loss.detach()) / mesh.size("tp") / count_of(targets);
    expect_close(of_all, expected.detach(), bound, "loss");

    const StateDict gradients = full_gradients(*cut);
    std::vector<torch::Tensor> whole_gradients;
    for (const auto& item : whole->named_parameters()) {
      ASSERT_EQ(gradients.tensors.count(item.key()), 1U) << item.key();
      expect_close(gradients.tensors.at(item.key()), item.value().grad(), bound, item.key());
      whole_gradients.push_back(item.value());
    }
    const double norm = torch::nn::utils::clip_grad_norm_(whole_gradients, 0.1);
    const torch::Tensor cut_norm = clip_grad_norm_(*cut, 0.1);
    EXPECT_NEAR(cut_norm.item<double>() / norm, 1, std::max(bound, 1e-12) * 10);
    whole_sgd.step();
    cut_sgd.step();
  }
  const StateDict weights = full_state_dict(*cut);
  for (const auto& item : whole->named_parameters()) {
    expect_close(weights.tensors.at(item.key()), item.value().detach(), bound, item.key());
  }
}

TEST(TensorParallel, LossesGradientsAndNormsAreThoseOfOneRank) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    run_ranks(ranks_of(layout), [&](const World& world) { expect_equal_steps(world, layout, 2); });
  }
}

TEST(TensorParallel, WeightsStartAsThoseOfTheWholeModel) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"tp", 2}});
    const auto whole = make_whole_model(at::kFloat);
    const auto cut = make_cut_model(mesh, Tokens::kAll, at::kFloat);
    shard_cut_model(*cut, mesh);
    const StateDict weights = full_state_dict(*cut);
    ASSERT_EQ(weights.tensors.size(), whole->parameters().size());
    for (const auto& item : whole->named_parameters()) {
      EXPECT_TRUE(torch::equal(weights.tensors.at(item.key()), item.value().detach())) << item.key();
    }
  });
}

TEST(TensorParallel, LossTermsAreThoseOfWholeLogits) {
  constexpr int64_t kRowsOfLogits = 12, kColumns = 40;
  run_ranks(4, [](const World& world) {
    const auto ranks = Ranks::along(Mesh(world, {{"tp", 4}}), "tp");
    const at::Generator numbers = generator(9);
    const torch::Tensor logits = 3 * torch::randn({kRowsOfLogits, kColumns}, numbers, torch::kDouble);
    torch::Tensor targets = torch::randint(kColumns, {kRowsOfLogits}, numbers, torch::kLong);
    targets[3] = -100;
    const torch::Tensor weights = torch::rand({kRowsOfLogits}, numbers, torch::kDouble);
    for (const parallel::VocabLossTerms& terms :
         {parallel::VocabLossTerms{0.1, 0}, parallel::VocabLossTerms{0, 0.2}, parallel::VocabLossTerms{0.3, 0.1}}) {
      const torch::Tensor whole = logits.clone().requires_grad_();
      const torch::Tensor squares = whole.logsumexp(-1).square().masked_fill(targets.eq(-100), 0);
      const torch::Tensor expected =
          torch::cross_entropy_loss(whole, targets, {}, at::Reduction::None, -100, terms.label_smoothing) +
          terms.z_loss * squares;
      (expected * weights).sum().backward();
      const torch::Tensor own = ranks->own_part(logits, 1, "test").clone().requires_grad_();
      const torch::Tensor losses = parallel::vocab_cross_entropy(own, targets, ranks, -100, terms);
      (losses * weights).sum().backward();
      expect_close(losses.detach(), expected.detach(), 1e-12, "losses");
      expect_close(own.grad(), ranks->own_part(whole.grad(), 1, "test"), 1e-12, "gradient");
    }
    EXPECT_THAT(
        [&] {
          parallel::vocab_cross_entropy(logits, targets, ranks, -100, {0, 1});
        },
        ThrowsMessage<Error>(HasSubstr("label_smoothing 1, expected at least 0, and 0 up to 1")));
  });
}

TEST(TensorParallel, TargetsOutsideTheVocabularyAreRefusedByEveryRank) {
  run_ranks(2, [](const World& world) {
    const auto ranks = Ranks::along(Mesh(world, {{"tp", 2}}), "tp");
    const torch::Tensor logits = torch::zeros({3, 4});  // of 8
    for (const int64_t bad : {8, -1, -99, 1000}) {
      const torch::Tensor targets = torch::tensor({int64_t{7}, bad, int64_t{-100}}, torch::kLong);
      EXPECT_THAT([&] { parallel::vocab_cross_entropy(logits, targets, ranks); },
                  ThrowsMessage<Error>(HasSubstr(c10::str("target of row 1: got ", bad, ", expected 0..7"))));
    }
    // Nobody waits for anybody: the next loss is that of all ranks.
    const torch::Tensor targets = torch::tensor({int64_t{7}, int64_t{0}, int64_t{-100}}, torch::kLong);
    const torch::Tensor losses = parallel::vocab_cross_entropy(logits, targets, ranks);
    expect_close(losses, torch::tensor({std::log(8.0), std::log(8.0), 0.0}).to(torch::kFloat), 1e-6, "losses");
    EXPECT_NO_THROW(parallel::vocab_cross_entropy(logits, targets.masked_fill(targets.eq(-100), -1), ranks, -1));
  });
}

TEST(TensorParallel, TheCutLossHasFirstDerivativesOnly) {
  run_ranks(2, [](const World& world) {
    const auto ranks = Ranks::along(Mesh(world, {{"tp", 2}}), "tp");
    const torch::Tensor logits = torch::ones({3, 4}).requires_grad_();
    const torch::Tensor targets = torch::tensor({int64_t{7}, int64_t{0}, int64_t{-100}}, torch::kLong);
    const torch::Tensor loss = parallel::vocab_cross_entropy(logits, targets, ranks).sum();
    const auto gradient = [&](bool create_graph) {
      return torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true, create_graph)[0];
    };
    const torch::Tensor recorded = gradient(true);
    EXPECT_TRUE(torch::equal(recorded.detach(), gradient(false)));
    EXPECT_THAT([&] { (loss + recorded.square().sum()).backward(); },
                ThrowsMessage<std::exception>(HasSubstr("[vocab_cross_entropy] got a gradient of a gradient")));
  });
}

// A loss of gradients: what crosses between ranks crosses again.
TEST(TensorParallel, GradientsOfGradientsAreThoseOfOneRank) {
  using Block = std::function<torch::Tensor(const torch::Tensor&)>;
  for (const Tokens tokens : {Tokens::kAll, Tokens::kOwn}) {
    run_ranks(2, [tokens](const World& world) {
      const Mesh mesh(world, {{"tp", 2}});
      const auto cut = make_cut_model(mesh, tokens, at::kDouble);
      const auto whole = make_whole_model(at::kDouble);
      auto& cut_block = cut->layers->at<CutBlock>(0);
      auto& whole_block = whole->layers->at<WholeBlock>(0);
      const torch::Tensor x = torch::randn({2, 4, kWidth}, generator(5), torch::dtype(torch::kDouble));
      // Of the squared gradients of the input and of a weight that ranks have alike.
      const auto gradients_of = [&](const Block& forward, const torch::Tensor& weight,
                                    std::vector<torch::Tensor> leaves) {
        const torch::Tensor input = x.clone().requires_grad_();
        const auto slopes = torch::autograd::grad({forward(input).sin().sum()}, {input, weight}, {},
                                                  /*retain_graph=*/true, /*create_graph=*/true);
        leaves.push_back(input);
        return torch::autograd::grad({slopes[0].square().sum() + slopes[1].square().sum()}, leaves);
      };
      const auto forward = [&](const torch::Tensor& input) {
        if (tokens == Tokens::kAll) return cut_block.forward(input);
        const torch::Tensor y = cut_block.forward(parallel::own_tokens(input, 1, cut->ranks, "inlet"));
        return parallel::all_tokens(y, 1, cut->ranks, "outlet");
      };
      const auto actual = gradients_of(forward, cut_block.norm->weight, cut_block.parameters());
      const auto expected = gradients_of([&](const torch::Tensor& input) { return whole_block.forward(input); },
                                         whole_block.norm->weight, whole_block.parameters());
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        torch::Tensor part = expected[i];
        for (int64_t dim = 0; dim < part.dim(); ++dim) {
          if (part.size(dim) != actual[i].size(dim)) part = cut->ranks->own_part(part, dim, "expected");
        }
        expect_close(actual[i], part, 1e-10, c10::str("gradient ", i, tokens == Tokens::kOwn ? ", own tokens" : ""));
      }
    });
  }
}

TEST(TensorParallel, APartKnowsItsPlaceInTheWhole) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const auto cut = make_cut_model(mesh, Tokens::kAll, at::kFloat);
    const auto whole = make_whole_model(at::kFloat);
    shard_cut_model(*cut, mesh);
    const auto whole_values = whole->named_parameters();
    for (const auto& [name, leaf] : named_parameters(*cut)) {
      const auto part = cut_of(leaf);
      const bool is_alike =
          name.find("norm") != std::string::npos || name.ends_with("o_proj.bias") || name.ends_with("down.bias");
      ASSERT_EQ(part.has_value(), !is_alike) << name;
      if (!part) continue;
      const torch::Tensor runs = whole_values[name].detach().view({part->num_runs(), part->parts, part->run()});
      EXPECT_TRUE(torch::equal(leaf.detach(), runs.select(1, part->index).flatten())) << name;
    }
  });
}

TEST(TensorParallel, PlaceOfTellsHowAParameterWasCut) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh(world, {{"shard", 2}, {"tp", 2}});
    const auto cut = make_cut_model(mesh, Tokens::kAll, at::kFloat);
    Unit root = shard_cut_model(*cut, mesh);
    const auto expect_cut = [&](const std::string& name, int64_t dim, const std::vector<int64_t>& sizes) {
      const torch::Tensor parameter = cut->named_parameters()[name];
      for (const auto& [leaf_name, leaf] : named_parameters(*cut)) {
        if (leaf_name != name) continue;
        for (const torch::Tensor& tensor : {parameter, leaf}) {
          const auto place = place_of(tensor);
          ASSERT_TRUE(place && place->cut) << name;
          EXPECT_EQ(place->cut->dim, dim) << name;
          EXPECT_EQ(place->cut->index, mesh.index("tp")) << name;
          EXPECT_EQ(place->cut->parts, 2) << name;
          EXPECT_EQ(place->cut->sizes, sizes) << name;
        }
      }
    };
    expect_cut("layers.0.up.weight", 0, {kInner, kWidth});
    expect_cut("layers.0.up.bias", 0, {kInner});
    expect_cut("layers.1.down.weight", 1, {kWidth, kInner});
    expect_cut("embedding.weight", 0, {kVocab, kWidth});
    EXPECT_FALSE(place_of(cut->norm->weight)->cut);
    EXPECT_FALSE(place_of(cut->named_parameters()["layers.1.down.bias"])->cut);
  });
}

TEST(TensorParallel, RanksThatShareARandomStateDrawTheSame) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh(world, {{"shard", 2}, {"tp", 2}});
    const at::Generator mine = generator(100 + static_cast<uint64_t>(world.rank));
    torch::rand({3 + world.rank}, mine);  // and not at its beginning
    const torch::Tensor first = torch::rand({4}, mine.clone());
    parallel::share_random_state(mine, Ranks::along(mesh, "tp"));
    const torch::Tensor drawn = torch::rand({4}, mine);
    const torch::Tensor all = Ranks::along(mesh, "tp")->gather(drawn.unsqueeze(0), 0, "test");
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    EXPECT_EQ(torch::equal(drawn, first), mesh.index("tp") == 0);
    const torch::Tensor others = Ranks::along(mesh, "shard")->gather(drawn.unsqueeze(0), 0, "test");
    EXPECT_FALSE(torch::equal(others[0], others[1]));
  });
}

// Whole matrices and blocks of elements are not what a rank of a cut has.
TEST(TensorParallel, OptimizersThatNeedWholeParametersRefuseCutOnes) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const auto cut = make_cut_model(mesh, Tokens::kAll, at::kFloat);
    ShardOptions options;
    options.layout = {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
    Unit root = shard_cut_model(*cut, mesh, options);
    std::vector<at::Tensor> matrices;
    for (const at::Tensor& leaf : parameters(*cut)) {
      if (logical_sizes(leaf).size() == 2) matrices.push_back(leaf);
    }
    const auto is_refused = ThrowsMessage<Error>(HasSubstr("is cut for tensor parallelism"));
    EXPECT_THAT([&] { Muon(matrices, MuonOptions{}); }, is_refused);
    EXPECT_THAT([&] { LowBitAdamW(parameters(*cut), AdamWOptions{}); }, is_refused);
    AdamW(parameters(*cut), AdamWOptions{});
  });
}

// Of a forward and backward, by arithmetic: each half of a block moves its input or output once in each direction, the
// embedding once forward, the head once backward.
TEST(TensorParallel, BytesAreThoseOfTheFormulas) {
  for (const int tp : {2, 4}) {
    for (const Tokens tokens : {Tokens::kAll, Tokens::kOwn}) {
      SCOPED_TRACE(c10::str("tp ", tp, tokens == Tokens::kOwn ? ", own tokens" : ""));
      run_ranks(tp, [&](const World& world) {
        const Mesh mesh(world, {{"tp", tp}});
        const auto cut = make_cut_model(mesh, tokens, at::kFloat);
        Unit root = shard_cut_model(*cut, mesh);
        const auto [ids, targets] = cut_batch(3, kRows, kTokens);
        const int64_t activations = kRows * kTokens * kWidth * 4, losses = kRows * kTokens * 4;
        const int64_t from_others = tp - 1;  // of tp parts
        cut->ranks->reset_traffic();
        cut->loss(ids, targets).backward();
        int64_t expected = kBlocks * 8 * activations / tp * from_others;  // a sum is two halves, tokens twice as many
        expected += losses * from_others + 2 * 2 * losses / tp * from_others;
        int64_t ends = 2 * 2 * activations / tp * from_others;  // embedding and head
        if (tokens == Tokens::kOwn) {
          // The embedding scatters and its backward gathers; the head gathers and its backward scatters. Norms: weight
          // and bias.
          ends = 4 * activations / tp * from_others + (2 * kBlocks + 1) * 2 * 2 * kWidth * 4 / tp * from_others;
          // The row layers' biases add their gradients up.
          ends += kBlocks * 2 * 2 * kWidth * 4 / tp * from_others;
        }
        EXPECT_EQ(cut->ranks->traffic().bytes, expected + ends);
      });
    }
  }
}

// Without gradients nothing is kept for a second projection, and the results are the same.
TEST(TensorParallel, ComputesWithoutGradients) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const auto [ids, targets] = cut_batch(4, 2, kTokens);
    const auto whole = make_whole_model(at::kDouble);
    const auto cut = make_cut_model(mesh, Tokens::kOwn, at::kDouble);
    const torch::Tensor expected = whole->loss(ids, targets).detach();
    {
      const torch::NoGradGuard no_grad;
      expect_close(cut->loss(ids, targets), expected, 1e-12, "no grad");
    }
    const c10::InferenceMode inference;
    expect_close(cut->loss(ids, targets), expected, 1e-12, "inference");
  });
}

TEST(TensorParallel, ARankThatLeavesALayerOutIsNamed) {
  run_ranks_with(
      2,
      [](int rank) {
        comm::ConnectOptions options;
        options.deadline = std::chrono::milliseconds(1500);
        choose_transport(options, rank, 2);
        return options;
      },
      [](const World& world) {
        const Mesh mesh(world, {{"tp", 2}});
        const auto cut = make_cut_model(mesh, Tokens::kAll, at::kFloat);
        const auto [ids, targets] = cut_batch(5, 2, kTokens);
        std::string what;
        try {
          if (world.rank == 1) cut->layers->at<CutBlock>(1).down(torch::ones({kInner / 2}));
          cut->loss(ids, targets).backward();
        } catch (const Error& error) {
          what = error.what();
        }
        EXPECT_THAT(what, HasSubstr(world.rank == 0 ? "sum over tp of 'embedding'" : "sum over tp of 'layers.1.down'"));
        EXPECT_THAT(what, HasSubstr(c10::str("rank ", 1 - world.rank)));
      });
}

// ---- What is refused

TEST(TensorParallel, SizesThatDoNotDivideNameTheirNeighbours) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh(world, {{"tp", 4}});
    const auto ranks = Ranks::along(mesh, "tp");
    const auto column = [&] { parallel::ColumnLinear(4, 10, mesh, parallel::LinearOptions{true, Tokens::kAll, "q"}); };
    EXPECT_THAT(column, ThrowsMessage<Error>(
                            HasSubstr("'q': got 10 outputs for 4 ranks, expected a multiple of that: 8 or 12")));
    const auto row = [&] { parallel::RowLinear(3, 8, mesh); };
    EXPECT_THAT(row, ThrowsMessage<Error>(HasSubstr("got 3 inputs for 4 ranks, expected a multiple of that: 4")));
    const auto rows = [&] { parallel::VocabEmbedding(50, 8, mesh); };
    EXPECT_THAT(rows, ThrowsMessage<Error>(HasSubstr("48 or 52")));
    const auto tokens = [&] { parallel::own_tokens(torch::ones({2, 7, 3}), 1, ranks, "inlet"); };
    EXPECT_THAT(tokens, ThrowsMessage<Error>(HasSubstr("'inlet': got 7 along dimension 1 for 4 ranks")));
  });
}

struct Tied : torch::nn::Module {
  Tied() {
    a = register_module("a", parallel::Linear(4, 4));
    b = register_module("b", parallel::Linear(4, 4));
    c = register_module("c", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 4, 1)));
    b->weight = b->register_parameter("tied", a->weight);
  }
  parallel::Linear a{nullptr}, b{nullptr};
  torch::nn::Conv1d c{nullptr};
};

TEST(TensorParallel, ParallelizeRefusesWhatItCannotCut) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const auto ranks = Ranks::along(mesh, "tp");
    const auto model = make_seeded(1, [] { return std::make_shared<Tied>(); });
    const auto cut = [&](const char* pattern, Style style) {
      return [&model, &mesh, pattern, style] { parallelize(*model, {{pattern, style}}, mesh); };
    };
    EXPECT_THAT(cut("q_*", Style::kRow), ThrowsMessage<Error>(HasSubstr("pattern 'q_*' fits no module")));
    EXPECT_THAT(cut("c", Style::kRow), ThrowsMessage<Error>(HasSubstr("expected fsdp::parallel::Linear")));
    EXPECT_THAT(cut("a", Style::kRow), ThrowsMessage<Error>(HasSubstr("belongs to another module too")));
    EXPECT_THAT(cut("c", Style::kTokens), ThrowsMessage<Error>(HasSubstr("Use Tokens::kOwn")));
    auto linear = make_seeded(2, [] { return torch::nn::Sequential(parallel::Linear(4, 4)); });
    EXPECT_EQ(parallelize(*linear, {{"*", Style::kColumn}}, mesh), std::vector<std::string>{"0"});
    const auto again = [&] { parallelize(*linear, {{"*", Style::kColumn}}, mesh); };
    EXPECT_THAT(again, ThrowsMessage<Error>(HasSubstr("'0' is cut already")));
    // FSDP with a mesh that does not know of the cut.
    const auto flat = [&] { fully_shard(*linear, Mesh::shard(world)); };
    EXPECT_THAT(flat, ThrowsMessage<Error>(HasSubstr("'0.weight' was cut over other ranks")));
    fully_shard(*linear, mesh);
    auto plain = make_seeded(3, [] { return torch::nn::Sequential(parallel::Linear(4, 4)); });
    fully_shard(*plain, mesh);
    const auto late = [&] { parallelize(*plain, {{"0", Style::kRow}}, mesh); };
    EXPECT_THAT(late, ThrowsMessage<Error>(HasSubstr("before fully_shard()")));
  });
}

TEST(TensorParallel, WeightsThatRanksHaveAlikeMustStartAlike) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh(world, {{"tp", 2}});
    const auto ranks = Ranks::along(mesh, "tp");
    const auto norm = std::make_shared<torch::nn::LayerNormImpl>(torch::nn::LayerNormOptions({4}));
    if (world.rank == 1) norm->weight.detach().fill_(2);
    EXPECT_THAT([&] { fully_shard(*norm, mesh); }, ThrowsMessage<Error>(HasSubstr("rank 1 starts from other weights")));
  });
}

}  // namespace
}  // namespace fsdp::tensor_parallel_test
