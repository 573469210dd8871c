// Parameters that are no contiguous matrix of their own: without dims, strided, over one memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/worlds.h"

namespace fsdp::parameter_kinds_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::share_of;

// What CLIP, SigLIP and many physics models have: a scale and a temperature without dims, and weights in other orders.
struct Odd : torch::nn::Module {
  Odd() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    convolution->weight.set_data(convolution->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    mix = register_parameter("mix", torch::zeros({4, 5}).t());
    logit_scale = register_parameter("logit_scale", torch::tensor(0.7F));
    temperature = register_parameter("temperature", torch::tensor(1.3F));
    const torch::NoGradGuard no_grad;  // no generator: ranks may be threads, which share it
    for (torch::Tensor& weight : parameters()) {
      if (weight.dim() > 0) weight.copy_((torch::arange(weight.numel()) * 0.7).sin().view(weight.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = convolution(images.view({-1, 3, 4, 4})).mean({2, 3});
    return (features.matmul(mix.t()) * logit_scale.exp()).tanh() / temperature;
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::Tensor mix, logit_scale, temperature;
};

torch::Tensor images(uint64_t seed) { return testing::batch(seed, 12, 48); }

TEST(ParameterKinds, ScalarsAndStridedWeightsTrainLikeTheUnshardedModel) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << name(strategy) << ", world " << size);
      run_ranks(size, [&](const World& world) {
        Odd sharded, twin;
        ShardOptions options;
        options.strategy = strategy;
        fully_shard(sharded, Mesh::shard(world), options);
        AdamW optimizer(parameters(sharded), {.lr = 0.05});
        torch::optim::AdamW twins(twin.parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.01));
        for (uint64_t step = 0; step < 3; ++step) {
          sharded.forward(share_of(world, images(step))).square().mean().backward();
          twin.forward(images(step)).square().mean().backward();
          expect_same_gradients(sharded, twin);
          optimizer.step();
          twins.step();
          sharded.zero_grad();
          twin.zero_grad();
        }
        expect_same_weights(sharded, twin);
        EXPECT_EQ(sharded.logit_scale.dim(), 0);
        EXPECT_TRUE(sharded.mix.is_contiguous());
      });
    }
  }
}

TEST(ParameterKinds, ScalarsGoThroughCheckpointsOfOtherWorlds) {
  const io::TemporaryFolder folder;
  run_ranks(3, [&](const World& world) {
    Odd sharded;
    fully_shard(sharded, Mesh::shard(world));
    SGD optimizer(parameters(sharded), {.lr = 0.1});
    sharded.forward(share_of(world, images(1))).square().mean().backward();
    optimizer.step();
    checkpoint::save(folder.path() / "step-1", {.model = sharded});
  });
  Odd twin;
  torch::optim::SGD twins(twin.parameters(), 0.1);
  twin.forward(images(1)).square().mean().backward();
  twins.step();
  run_ranks(2, [&](const World& world) {
    Odd read;
    for (torch::Tensor& parameter : read.parameters()) parameter.detach().zero_();
    fully_shard(read, Mesh::shard(world));
    checkpoint::load(folder.path() / "step-1", {.model = read});
    expect_same_weights(read, twin);
  });
}

// Simulation is done in fp64: nothing on the way may round.
TEST(ParameterKinds, Fp64ModelsTrainInFp64) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << name(strategy) << ", world " << size);
      run_ranks(size, [&](const World& world) {
        Odd sharded, twin;
        sharded.to(torch::kDouble);
        twin.to(torch::kDouble);
        ShardOptions options;
        options.strategy = strategy;
        fully_shard(sharded, Mesh::shard(world), options);
        AdamW adamw(parameters(sharded), {.lr = 0.05});
        SGD sgd(parameters(sharded), {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
        torch::optim::AdamW adamw_twin(twin.parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.01));
        torch::optim::SGD sgd_twin(twin.parameters(),
                                   torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.01).nesterov(true));
        for (uint64_t step = 0; step < 3; ++step) {
          const torch::Tensor rows = images(step).to(torch::kDouble);
          sharded.forward(share_of(world, rows)).square().mean().backward();
          twin.forward(rows).square().mean().backward();
          const torch::Tensor norm = clip_grad_norm_(sharded, 0.01);
          EXPECT_EQ(norm.scalar_type(), torch::kDouble);
          EXPECT_NEAR(norm.item<double>(), torch::nn::utils::clip_grad_norm_(twin.parameters(), 0.01), 1e-13);
          adamw.step();
          adamw_twin.step();
          sgd.step();
          sgd_twin.step();
          sharded.zero_grad();
          twin.zero_grad();
        }
        expect_same_weights(sharded, twin, 1e-12);
      });
    }
  }
}

// ---- batch norms in bf16

torch::nn::Sequential normed() {
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).bias(false)),
                              torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                              torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(4).affine(true)));
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& weight : model->parameters()) {
    weight.copy_((torch::arange(weight.numel()) * 0.7).sin().view(weight.sizes()));
  }
  return model;
}

// FSDP1's rule: batch norms compute in fp32, and take what bf16 layers give them.
TEST(ParameterKinds, BatchNormsStayInFp32UnderBf16) {
  for (const int size : {1, 2}) {
    run_ranks(size, [&](const World& world) {
      SCOPED_TRACE(size);
      torch::nn::Sequential sharded = normed(), twin = normed();
      twin[0]->to(torch::kBFloat16);
      const Unit root = fully_shard(*sharded, Mesh::shard(world), {.precision = Precision::bf16()});
      const torch::Tensor rows = share_of(world, images(1)).view({-1, 3, 4, 4}).to(torch::kBFloat16);
      const torch::Tensor got = sharded->forward(rows), want = twin->forward(rows);
      EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(torch::equal(got, want));
      got.to(torch::kFloat).square().mean().backward();
      want.to(torch::kFloat).square().mean().backward();
      {
        const auto scope = full_parameters(root);
        EXPECT_EQ(sharded->parameters()[0].scalar_type(), torch::kBFloat16);
        for (size_t i = 1; i < 5; ++i) EXPECT_EQ(sharded->parameters()[i].scalar_type(), torch::kFloat);
      }
      if (size > 1) return;
      for (size_t i = 0; i < 5; ++i) {
        const torch::Tensor gradient = twin->parameters()[i].grad().to(torch::kFloat).view(-1);
        EXPECT_TRUE(torch::allclose(parameters(*sharded)[i].grad(), gradient, 1e-5, 1e-6)) << i;
      }
    });
  }
}

TEST(ParameterKinds, WhichKindsKeepFp32CanBeChosen) {
  run_ranks(2, [](const World& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    for (torch::Tensor& weight : model->parameters()) weight.detach().fill_(1);
    Precision precision = Precision::bf16();
    precision.keep_fp32 = {ModuleKind::kLayerNorm};
    const Unit root = fully_shard(*model, Mesh::shard(world), {.precision = precision});
    const auto scope = full_parameters(root);
    EXPECT_EQ(model->parameters()[1].scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model->parameters()[2].scalar_type(), torch::kFloat);
  });
}

// A table whose rows are looked up, and which is the head's weight too where it is tied: then one of its gradients is
// sparse, the other dense.
struct Lookup : torch::nn::Module {
  explicit Lookup(bool is_tied) : tied(is_tied) {
    const auto options = torch::nn::EmbeddingOptions(10, 4).sparse(true);
    table = register_module("table", torch::nn::Embedding(options));
    head = register_module("head", torch::nn::Linear(4, 10));
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    const torch::Tensor x = torch::tanh(table(ids));
    return (tied ? torch::linear(x, table->weight) : head(x)).square().mean();
  }
  bool tied;
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};

// Sums over ranks that looked up other rows.
TEST(ParameterKinds, SparseGradientsAddUpAsDenseOnes) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    testing::for_strategies([&](const World& world, const ShardOptions& options) {
      const auto make = [&] { return testing::make_seeded(5, [&] { return std::make_shared<Lookup>(tied); }); };
      const auto sharded = make(), twin = make();
      fully_shard(*sharded->table, Mesh::shard(world), options);
      const Unit root = fully_shard(*sharded, Mesh::shard(world), options);
      SGD optimizer(parameters(*sharded), {.lr = 0.5});
      torch::optim::SGD twins(twin->parameters(), 0.5);
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        const torch::Tensor ids = torch::randint(10, {12}, testing::generator(seed), torch::kLong);
        const Microbatch scope(root, seed % 2 == 0);
        sharded->loss(share_of(world, ids)).backward();
        twin->loss(ids).backward();
        if (seed % 2 != 0) continue;
        optimizer.step();
        twins.step();
        zero_grad(*sharded);
        twin->zero_grad();
      }
      testing::expect_same_weights(*sharded, *twin);
    });
  }
}

struct Views : torch::nn::Module {
  explicit Views(int64_t second_begin) {
    const torch::Tensor memory = torch::ones({12});
    first = register_parameter("first", memory.narrow(0, 0, 6));
    second = register_parameter("second", memory.narrow(0, second_begin, 6).detach());
  }
  torch::Tensor first, second;
};

TEST(ParameterKinds, TensorsOverOneMemoryAreRefusedWhereTheyMeet) {
  run_ranks(2, [](const World& world) {
    Views meeting(4);
    EXPECT_THAT(error_of([&] { fully_shard(meeting, Mesh::shard(world)); }),
                AllOf(HasSubstr("'second' shares memory with 'first'"), HasSubstr("Register one tensor")));
    Views apart(6);
    EXPECT_EQ(error_of([&] { fully_shard(apart, Mesh::shard(world)); }), "no error");
  });
}

}  // namespace
}  // namespace fsdp::parameter_kinds_test
