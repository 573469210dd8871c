// Sequences that are cut over "cp", alone and with "shard" and "tp", train as whole ones on one rank: packed documents,
// RoPE, targets that are unevenly many on the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/parallel/context_attention.h"
#include "fsdp/parallel/zigzag.h"
#include "tests/parallel/cut_model.h"
#include "tests/support/close.h"

namespace fsdp::context_parallel_test {
namespace {

using parallel::Ranks;
using parallel::Style;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kRows = 4, kTokens = 16, kHeads = 4, kKeyHeads = 2, kDim = 4, kWindow = 9;

// Pairs of features turned by angles that grow with the position.
torch::Tensor turned(const torch::Tensor& x_BTHD, const torch::Tensor& positions_T) {
  const torch::Tensor rates = torch::pow(100.0, -torch::arange(kDim / 2).to(x_BTHD.scalar_type()) / (kDim / 2));
  const torch::Tensor angles = (positions_T.to(x_BTHD.scalar_type()).unsqueeze(1) * rates).unsqueeze(1);
  const auto halves = x_BTHD.chunk(2, -1);
  return torch::cat(
      {halves[0] * angles.cos() - halves[1] * angles.sin(), halves[0] * angles.sin() + halves[1] * angles.cos()}, -1);
}

// Two layers of attention. Without ranks: whole, with plain masks.
struct Reader : torch::nn::Module {
  Reader() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocab, kHeads * kDim));
    for (const char* layer : {"a", "b"}) {
      for (const auto& [name, out] : {std::pair{"q", kHeads}, {"k", kKeyHeads}, {"v", kKeyHeads}, {"o", kHeads}}) {
        maps.emplace(std::string(layer) + name,
                     register_module(std::string(layer) + name, parallel::Linear(kHeads * kDim, out * kDim)));
      }
    }
    head = register_module("head", torch::nn::Linear(kHeads * kDim, kVocab));
  }

  torch::Tensor attend(const std::string& layer, const torch::Tensor& x, const torch::Tensor& documents,
                       const std::shared_ptr<Ranks>& cp) {
    const auto heads = [&](const char* name) { return maps.at(layer + name)(x).unflatten(-1, {-1, kDim}); };
    const torch::Tensor positions =
        cp ? parallel::zigzag_positions(documents.size(1), cp->rank(), cp->size()) : torch::arange(documents.size(1));
    const torch::Tensor q = turned(heads("q"), positions), k = turned(heads("k"), positions), v = heads("v");
    if (cp) {
      const torch::Tensor mask = parallel::context_mask(documents.size(1), {documents, kWindow}, *cp, q.options());
      return maps.at(layer + "o")(parallel::context_attention(q, k, v, mask, cp, layer).flatten(2));
    }
    const int64_t group = q.size(2) / k.size(2);
    const torch::Tensor scores =
        torch::einsum("bthd,bshd->bhts", {q, k.repeat_interleave(group, 2)}) / std::sqrt(double{kDim});
    const torch::Tensor before = documents.unsqueeze(2).eq(documents.unsqueeze(1)).tril();
    const torch::Tensor sees = before.logical_and(before.new_ones({kTokens, kTokens}).triu(1 - kWindow)).unsqueeze(1);
    const torch::Tensor weights = scores.masked_fill(sees.logical_not(), -INFINITY).softmax(-1);
    const torch::Tensor y = torch::einsum("bhts,bshd->bthd", {weights, v.repeat_interleave(group, 2)});
    return maps.at(layer + "o")(y.flatten(2));
  }

  // Sum over targets. ids and targets [B, T/N], documents [B, T].
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets, const torch::Tensor& documents,
                     const std::shared_ptr<Ranks>& cp) {
    torch::Tensor x = embedding(ids);
    for (const char* layer : {"a", "b"}) x = x + attend(layer, x, documents, cp);
    return torch::cross_entropy_loss(head(x).flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum);
  }

  torch::nn::Embedding embedding{nullptr};
  std::map<std::string, parallel::Linear> maps;
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<Reader> make_reader(at::ScalarType dtype) {
  auto model = make_seeded(88, [] { return std::make_shared<Reader>(); });
  model->to(dtype);
  return model;
}

// Documents of 1 to 7 tokens.
torch::Tensor packed_documents(uint64_t seed) {
  const torch::Tensor begins = torch::rand({kRows, kTokens}, generator(seed)) < 0.25;
  return begins.to(torch::kLong).cumsum(1);
}

int64_t count_of(const torch::Tensor& targets) { return targets.ne(-100).sum().item<int64_t>(); }

void expect_equal_step(const World& world, const std::vector<MeshAxis>& axes, at::ScalarType dtype) {
  const Mesh mesh(world, axes);
  // fp64 shows that the sums are the right ones, fp32 that they are made in fp32.
  const double bound = dtype == at::kDouble ? 1e-12 : 1e-5;
  const auto cp = Ranks::along(mesh, "cp");
  const auto whole = make_reader(dtype), cut = make_reader(dtype);
  const parallel::Plan plan = {
      {"*q", Style::kColumn}, {"*k", Style::kColumn}, {"*v", Style::kColumn}, {"*o", Style::kRow}};
  parallelize(*cut, plan, mesh);
  const int64_t shards = mesh.size("shard"), rows = kRows / shards, first = mesh.index("shard") * rows;
  std::vector<std::string> data = {"cp"};
  if (mesh.has("shard")) data.insert(data.begin(), "shard");
  const Mesh data_mesh = mesh.flattened(data, "shard");
  Unit root = fully_shard(*cut, data_mesh);
  const std::vector<torch::Tensor> leaves = parameters(*cut);
  for (uint64_t step = 0; step < 2; ++step) {
    const auto [ids, targets] = cut_batch(step, kRows, kTokens);
    const torch::Tensor documents = step == 0 ? torch::zeros({kRows, kTokens}, torch::kLong) : packed_documents(step);
    whole->zero_grad();
    const torch::Tensor expected = whole->loss(ids, targets, documents, nullptr) / count_of(targets);
    expected.backward();

    const auto own = [&](const torch::Tensor& x) {
      return parallel::zigzag_part(x.narrow(0, first, rows), 1, cp->rank(), cp->size());
    };
    zero_grad(*cut);
    root.set_gradient_scale(GradScale::per_token(count_of(own(targets))));
    cp->reset_traffic();
    const torch::Tensor loss = cut->loss(own(ids), own(targets), documents.narrow(0, first, rows), cp);
    loss.backward();
    // Two layers; keys and values of the other ranks, and back the sums of their gradients.
    const int64_t bytes =
        2 * rows * kTokens / cp->size() * kKeyHeads / mesh.size("tp") * kDim * static_cast<int64_t>(elementSize(dtype));
    EXPECT_EQ(cp->traffic().bytes, 2 * 2 * bytes * (cp->size() - 1));
    const torch::Tensor sum = sum_over_ranks(world, loss.detach()) / mesh.size("tp") / count_of(targets);
    expect_close(sum, expected.detach(), bound, "loss");
    const StateDict gradients = full_gradients(*cut);
    std::vector<torch::Tensor> parameters;
    for (const auto& item : whole->named_parameters()) {
      expect_close(gradients.tensors.at(item.key()), item.value().grad(), bound, item.key());
      parameters.push_back(item.value());
    }
    const double norm = torch::nn::utils::clip_grad_norm_(parameters, 1.0);
    EXPECT_NEAR(clip_grad_norm_(leaves, 1.0).item<double>() / norm, 1, bound * 10);
  }
}

TEST(ContextParallel, LossesAndGradientsAreThoseOfOneRank) {
  using Axes = std::vector<MeshAxis>;
  for (const Axes& axes :
       {Axes{{"cp", 1}}, Axes{{"cp", 2}}, Axes{{"cp", 4}}, Axes{{"cp", 8}}, Axes{{"shard", 2}, {"cp", 2}},
        Axes{{"cp", 2}, {"tp", 2}}, Axes{{"shard", 4}, {"cp", 2}}, Axes{{"shard", 2}, {"cp", 2}, {"tp", 2}}}) {
    int ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      run_ranks(ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(Mesh(world, axes).describe(), " ", dtype));
        expect_equal_step(world, axes, dtype);
      });
    }
  }
}

TEST(ContextParallel, EveryTokenIsOnOneRankAndEarlyOnesMeetLateOnes) {
  run_ranks(4, [](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 4}}), "cp");
    const torch::Tensor positions = parallel::zigzag_positions(16, world.rank, 4);
    const int64_t r = world.rank;
    EXPECT_TRUE(torch::equal(positions, torch::tensor({2 * r, 2 * r + 1, 14 - 2 * r, 15 - 2 * r})));
    const torch::Tensor all = cp->gather(positions.unsqueeze(0), 1, "test");
    EXPECT_TRUE(torch::equal(parallel::zigzag_in_order(all, 1, 4)[0], torch::arange(16)));
    EXPECT_THAT(
        [&] { parallel::zigzag_positions(20, world.rank, 4); },
        ThrowsMessage<Error>(HasSubstr("got 20 tokens for 4 ranks, expected a multiple of 8, two chunks for each: "
                                       "16 or 24")));
    const torch::Tensor q = torch::ones({1, 4, 3, 2}), k = torch::ones({1, 4, 2, 2});
    const torch::Tensor mask = parallel::context_mask(16, {}, *cp, q.options());
    EXPECT_THAT([&] { parallel::context_attention(q, k, k, mask, cp, "layer"); },
                ThrowsMessage<Error>(HasSubstr("of which K divides H")));
    EXPECT_THAT([&] { parallel::context_attention(k, k, k, mask.narrow(1, 0, 8), cp, "layer"); },
                ThrowsMessage<Error>(HasSubstr("got a mask [4, 8]")));
    EXPECT_THAT(
        [&] {
          parallel::context_mask(16, {torch::zeros({2, 4}, torch::kLong)}, *cp, q.options());
        },
        ThrowsMessage<Error>(HasSubstr("got documents [2, 4], expected [B, 16]")));
  });
}

TEST(ContextParallel, ARankThatLeavesALayerOutIsNamed) {
  const auto options_of = [](int rank) {
    comm::ConnectOptions options;
    options.deadline = std::chrono::milliseconds(1500);
    choose_transport(options, rank, 2);
    return options;
  };
  run_ranks_with(2, options_of, [](const World& world) {
    const auto cp = Ranks::along(Mesh(world, {{"cp", 2}}), "cp");
    const torch::Tensor q = torch::ones({1, 2, 1, 2});
    std::string what;
    try {
      const torch::Tensor mask = parallel::context_mask(4, {}, *cp, q.options());
      parallel::context_attention(q, q, q, mask, cp, world.rank == 0 ? "layers.0" : "layers.1");
    } catch (const Error& error) {
      what = error.what();
    }
    EXPECT_THAT(what, HasSubstr(c10::str("gather over cp of 'layers.", world.rank, "'")));
    EXPECT_THAT(what, HasSubstr(c10::str("rank ", 1 - world.rank)));
  });
}

TEST(ContextParallel, FullyShardWantsTheAxisFlattened) {
  run_ranks(2, [](const World& world) {
    const auto model = make_reader(at::kFloat);
    EXPECT_THAT(
        [&] {
          fully_shard(*model, Mesh(world, {{"cp", 2}}));
        },
        ThrowsMessage<Error>(HasSubstr("axis 'cp' has 2 ranks")));
  });
}

}  // namespace
}  // namespace fsdp::context_parallel_test
