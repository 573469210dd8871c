// Models of other kinds than the parity tests': convolutions with buffers, a cell in a loop, attention; none is told
// that it is sharded.
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::untouched_model_test {
namespace {

namespace nn = torch::nn;
using testing::batch;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::make_seeded;
using testing::run_ranks;
using testing::share_of;

constexpr int kSteps = 3;

// Rows of 24 features: an image of 1 x 4 x 6, a sequence of 6 x 4, or tokens.
struct Vision : nn::Module {
  Vision() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(3));
    head = register_module("head", nn::Linear(3 * 24, 5));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    const torch::Tensor x = torch::relu(norm(conv(rows.view({-1, 1, 4, 6}))));
    return head(x.flatten(1));
  }
  std::vector<nn::Module*> units() { return {conv.get(), norm.get()}; }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear head{nullptr};
};

struct Recurrent : nn::Module {
  Recurrent() {
    cell = register_module("cell", nn::GRUCell(4, 7));
    head = register_module("head", nn::Linear(7, 3));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    torch::Tensor state = torch::zeros({rows.size(0), 7});
    const torch::Tensor sequence = rows.view({-1, 6, 4});
    for (int64_t t = 0; t < 6; ++t) state = cell(sequence.select(1, t), state);
    return head(state);
  }
  std::vector<nn::Module*> units() { return {cell.get()}; }
  nn::GRUCell cell{nullptr};
  nn::Linear head{nullptr};
};

// torch's fused GRU reads all its weights in one operator, as a list.
struct Fused : nn::Module {
  Fused() {
    gru = register_module("gru", nn::GRU(nn::GRUOptions(4, 7).num_layers(2).bidirectional(true)));
    head = register_module("head", nn::Linear(14, 3));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    return head(std::get<0>(gru(rows.view({-1, 6, 4}).transpose(0, 1)))[-1]);
  }
  std::vector<nn::Module*> units() { return {gru.get()}; }
  nn::GRU gru{nullptr};
  nn::Linear head{nullptr};
};

struct Attention : nn::Module {
  Attention() {
    embedding = register_module("embedding", nn::Embedding(11, 8));
    const auto options = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0);
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderLayer(options), 2));
    head = register_module("head", nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    const torch::Tensor tokens = (rows.abs() * 7).to(torch::kLong).remainder(11).t();
    return head(encoder(embedding(tokens)).mean(0));
  }
  std::vector<nn::Module*> units() {
    std::vector<nn::Module*> list;
    for (const auto& layer : *encoder->layers) list.push_back(layer.get());
    return list;
  }
  nn::Embedding embedding{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};

// The unsharded model computes each rank's rows by itself, as that rank does: the same statistics in a batch norm.
template <class Model>
torch::Tensor plain_loss(Model& model, const torch::Tensor& rows, int ranks) {
  torch::Tensor loss = torch::zeros({});
  for (int rank = 0; rank < ranks; ++rank) {
    World place;
    place.rank = rank;
    place.size = ranks;
    loss = loss + model.forward(share_of(place, rows)).square().mean() / ranks;
  }
  return loss;
}

template <class Model>
void expect_training_parity(int ranks, bool training = true) {
  run_ranks(ranks, [&](const World& world) {
    const auto make = [] { return std::make_shared<Model>(); };
    const auto sharded = make_seeded(77, make);
    const auto plain = make_seeded(77, make);
    sharded->train(training);
    plain->train(training);
    for (nn::Module* unit : sharded->units()) fully_shard(*unit, Mesh::shard(world));
    const Unit root = fully_shard(*sharded, Mesh::shard(world));
    torch::optim::SGD optimizer(parameters(*sharded), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::optim::SGD plain_optimizer(plain->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor rows = batch(static_cast<uint64_t>(step), 12, 24);
      sharded->forward(share_of(world, rows)).square().mean().backward();
      plain_loss(*plain, rows, ranks).backward();
      expect_same_gradients(*sharded, *plain, 2e-5);
      optimizer.step();
      plain_optimizer.step();
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      EXPECT_EQ(root.counters().resident_unsharded_bytes, 0);
    }
    expect_same_weights(*sharded, *plain, 2e-5);
  });
}

TEST(UntouchedModel, ConvolutionAndBatchNorm) {
  expect_training_parity<Vision>(2);
  expect_training_parity<Vision>(3, /*training=*/false);
}
TEST(UntouchedModel, RecurrentCellInALoop) { expect_training_parity<Recurrent>(2); }
TEST(UntouchedModel, FusedRecurrence) { expect_training_parity<Fused>(3); }
TEST(UntouchedModel, TransformerEncoder) { expect_training_parity<Attention>(2); }

// A unit that runs many times in one forward is gathered once in it, from the second step on.
TEST(UntouchedModel, ALoopGathersItsCellOnce) {
  run_ranks(2, [](const World& world) {
    const auto model = make_seeded(77, [] { return std::make_shared<Recurrent>(); });
    fully_shard(*model->cell, Mesh::shard(world));
    Unit root = fully_shard(*model, Mesh::shard(world));
    parameters(*model);
    for (int step = 0; step < 3; ++step) {
      root.reset_counters();
      model->forward(share_of(world, batch(1, 12, 24))).square().mean().backward();
      EXPECT_LE(root.counters().gathers, 4);
      EXPECT_EQ(root.counters().reduces, 2);
    }
  });
}

}  // namespace
}  // namespace fsdp::untouched_model_test
