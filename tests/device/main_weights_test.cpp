// MainWeights::kOnHost on a device that is not there: the same numbers, with main weights, gradients and the states of
// optimizers in memory of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "tests/device/device_model.h"
#include "tests/device/fake_device.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::main_weights_test {
namespace {

using testing::DeviceModel;
using testing::fake_device;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::stream_clocks;

constexpr int kLayers = 2;
constexpr int64_t kWidth = 8;

torch::Tensor rows_of(uint64_t seed, const World& world, c10::Device device) {
  const torch::Tensor rows = torch::randn({12, kWidth}, testing::generator(seed));
  const int64_t count = rows.size(0) / world.size;
  return rows.narrow(0, world.rank * count, count).to(device);
}

Unit shard(DeviceModel& model, const Mesh& mesh, const ShardOptions& options) {
  for (const auto& layer : model.layers) fully_shard(*layer, mesh, options);
  return fully_shard(model, mesh, options);
}

ShardOptions on_host(Strategy strategy) {
  ShardOptions options;
  options.strategy = strategy;
  options.main_weights = MainWeights::kOnHost;
  return options;
}

void expect_on_host(const DeviceModel& model, c10::Device device) {
  for (const torch::Tensor& leaf : parameters(model)) {
    EXPECT_TRUE(leaf.is_cpu());
    if (leaf.grad().defined()) {
      EXPECT_TRUE(leaf.grad().is_cpu());
    }
  }
  for (const torch::Tensor& weight : model.parameters()) EXPECT_EQ(weight.device(), device);
}

// Two microbatches a step, clipped.
void train(DeviceModel& model, AdamW& optimizer, const Unit* root, const World& world, c10::Device device) {
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint64_t i = 0; i < 2; ++i) {
      const auto scope = root != nullptr ? std::make_optional<Microbatch>(*root, i == 1) : std::nullopt;
      model.forward(rows_of(10 * step + i, world, device)).square().mean().backward();
    }
    if (root != nullptr) {
      expect_on_host(model, device);
      clip_grad_norm_(model, 0.5);
    } else {
      torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5);
    }
    optimizer.step();
    root != nullptr ? zero_grad(model) : model.zero_grad();
  }
}

void expect_same_weights(DeviceModel& sharded, const DeviceModel& twin) {
  const auto wanted = twin.named_parameters();
  for (const auto& [name, weight] : full_state_dict(sharded).tensors) {
    EXPECT_TRUE(torch::allclose(weight, wanted[name].detach(), 1e-4, 1e-5)) << name;
  }
}

std::unique_ptr<DeviceModel> trained_twin() {
  auto twin = std::make_unique<DeviceModel>(kLayers, kWidth, at::TensorOptions(at::kCPU));
  AdamW optimizer(twin->parameters(), {.lr = 0.02});
  train(*twin, optimizer, nullptr, comm::connect_alone(), at::kCPU);
  return twin;
}

TEST(MainWeightsOnHost, TrainLikeTheUnshardedModel) {
  const auto twin = trained_twin();
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(c10::str(name(strategy), ", world ", size));
      stream_clocks().clear();
      run_ranks(size, [&](const World& world) {
        const c10::Device device = fake_device(world.rank);
        DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
        const Unit root = shard(model, Mesh::shard(world), on_host(strategy));
        AdamW optimizer(parameters(model), {.lr = 0.02});
        train(model, optimizer, &root, world, device);
        expect_same_weights(model, *twin);
      });
      EXPECT_THAT(stream_clocks().races(), IsEmpty());
    }
  }
}

TEST(MainWeightsOnHost, ReplicasTrainLikeTheUnshardedModel) {
  const auto twin = trained_twin();
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    stream_clocks().clear();
    run_ranks(4, [&](const World& world) {
      const c10::Device device = fake_device(world.rank);
      DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
      const Unit root = shard(model, Mesh(world, {{"replicate", 2}, {"shard", 2}}), on_host(strategy));
      AdamW optimizer(parameters(model), {.lr = 0.02});
      train(model, optimizer, &root, world, device);
      expect_same_weights(model, *twin);
    });
    EXPECT_THAT(stream_clocks().races(), IsEmpty());
  }
}

// The device keeps this rank's part of the bf16 weights, which is an eighth of what AdamW in fp32 has there.
TEST(MainWeightsOnHost, ADeviceHoldsTheGatheredDtypeAlone) {
  run_ranks(2, [](const World& world) {
    const c10::Device device = fake_device(world.rank);
    ShardOptions options = on_host(Strategy::kOptimGradsParams);
    options.precision = Precision::bf16();
    DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
    const Unit root = shard(model, Mesh::shard(world), options);
    AdamW optimizer(parameters(model), {.lr = 0.02});
    std::vector<float> losses;
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor rows = rows_of(1, world, device).to(at::kBFloat16);
      const torch::Tensor loss = model.forward(rows).to(at::kFloat).square().mean();
      loss.backward();
      losses.push_back(loss.detach().cpu().item<float>());
      optimizer.step();
      zero_grad(model);
    }
    EXPECT_LT(losses.back(), losses.front());
    const RestingBytes resting = root.resting_bytes();
    EXPECT_EQ(resting.main_weight, 2 * resting.model_weight);
    EXPECT_EQ(root.memory().params, resting.model_weight);
    EXPECT_EQ(root.memory().grads, 0);
  });
}

TEST(MainWeightsOnHost, WritesToWholeWeightsReachThem) {
  run_ranks(2, [](const World& world) {
    const c10::Device device = fake_device(world.rank);
    DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
    const Unit root = shard(model, Mesh::shard(world), on_host(Strategy::kOptimGradsParams));
    {
      const torch::NoGradGuard no_grad;
      const auto scope = full_parameters(root, WriteBack::kYes);
      for (torch::Tensor& weight : model.parameters()) weight.fill_(0.25);
    }
    for (const auto& [name, weight] : full_state_dict(model).tensors) {
      EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 0.25))) << name;
    }
    for (const torch::Tensor& leaf : parameters(model)) EXPECT_TRUE(torch::equal(leaf, torch::full_like(leaf, 0.25)));
  });
}

TEST(MainWeightsOnHost, CheckpointsGoToModelsThatHaveThemElsewhere) {
  const io::TemporaryFolder folder;
  const auto twin = trained_twin();
  run_ranks(2, [&](const World& world) {
    const c10::Device device = fake_device(world.rank);
    DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
    const Unit root = shard(model, Mesh::shard(world), on_host(Strategy::kOptimGradsParams));
    AdamW optimizer(parameters(model), {.lr = 0.02});
    train(model, optimizer, &root, world, device);
    checkpoint::save(folder.path() / "step-3", {.model = model, .optimizer = optimizer});
  });
  for (const MainWeights place : {MainWeights::kOnDevice, MainWeights::kOnHost}) {
    run_ranks(3, [&](const World& world) {
      ShardOptions options = on_host(Strategy::kOptimGrads);
      options.main_weights = place;
      DeviceModel model(kLayers, kWidth, at::TensorOptions(fake_device(world.rank)));
      const Unit root = shard(model, Mesh::shard(world), options);
      AdamW optimizer(parameters(model), {.lr = 0.02});
      checkpoint::load(folder.path() / "step-3", {.model = model, .optimizer = optimizer});
      expect_same_weights(model, *twin);
    });
  }
}

}  // namespace
}  // namespace fsdp::main_weights_test
