// Training on a GPU: the numbers are the CPU's within bounds, no stream meets memory of another, and nothing of a step
// waits for the GPU on the host.
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fsdp/comm/connection.h"
#include "fsdp/cuda/memory_report.h"
#include "fsdp/fsdp.h"
#include "tests/device/device_model.h"

namespace fsdp::training_test {
namespace {

using schedule::Schedule;
using testing::DeviceModel;
using ::testing::HasSubstr;

constexpr int kLayers = 6;
constexpr int64_t kWidth = 256;
constexpr int kSteps = 5;
const c10::Device kGpu(c10::kCUDA, 0);

struct Plan {
  ShardOptions options;
  int num_microbatches = 1;
  bool fused_optimizer = true;
  std::function<void()> disturb = {};  // before each microbatch
};

struct Curve {
  std::vector<torch::Tensor> losses;
  std::vector<torch::Tensor> weights;
};

torch::Tensor rows_of(int step, int microbatch, c10::Device device) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * step + microbatch));
  return torch::randn({64, kWidth}, generator).to(device);
}

Curve train(const World& world, c10::Device device, const Plan& plan) {
  DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
  for (const auto& layer : model.layers) fully_shard(*layer, Mesh::shard(world), plan.options);
  const Unit root = fully_shard(model, Mesh::shard(world), plan.options);
  std::optional<SGD> fused;
  std::optional<torch::optim::SGD> plain;
  const std::vector<torch::Tensor> leaves = parameters(model);
  if (plan.fused_optimizer) {
    fused.emplace(leaves, SGDOptions{.lr = 0.05, .momentum = 0.9});
  } else {
    plain.emplace(leaves, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < plan.num_microbatches; ++i) {
      if (plan.disturb) plan.disturb();
      const Microbatch scope(root, i + 1 == plan.num_microbatches);
      const torch::Tensor loss = model.forward(rows_of(step, i, device)).square().mean() / plan.num_microbatches;
      loss.backward();
      curve.losses.push_back(loss.detach());
    }
    plan.fused_optimizer ? fused->step() : static_cast<void>(plain->step());
    zero_grad(model);
  }
  for (torch::Tensor& loss : curve.losses) loss = loss.cpu();
  for (const torch::Tensor& leaf : leaves) curve.weights.push_back(leaf.detach().cpu());
  return curve;
}

void expect_close(const Curve& curve, const Curve& expected, double tolerance) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_TRUE(torch::allclose(curve.losses[i], expected.losses[i], tolerance, tolerance))
        << "loss " << i << ": " << curve.losses[i].item<float>() << " against " << expected.losses[i].item<float>();
  }
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(curve.weights[i], expected.weights[i], tolerance, tolerance)) << "weight " << i;
  }
}

void expect_same_bits(const Curve& curve, const Curve& expected) {
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_TRUE(torch::equal(curve.losses[i], expected.losses[i]));
  for (size_t i = 0; i < expected.weights.size(); ++i) EXPECT_TRUE(torch::equal(curve.weights[i], expected.weights[i]));
}

ShardOptions copied(ShardOptions options = {}) {
  options.whole_weights = WholeWeights::kCopied;
  return options;
}

std::vector<ShardOptions> many_options() {
  ShardOptions late = copied({.schedule = Schedule::fsdp1(true, schedule::BackwardPrefetch::kPost, true)});
  ShardOptions unified = copied();
  unified.schedule.threads = schedule::CommThreads::kUnified;
  return {{},
          copied(),
          copied({.schedule = Schedule::static_order(2)}),
          copied({.schedule = Schedule::delayed_release(1)}),
          copied({.schedule = Schedule::on_demand()}),
          late,
          unified,
          copied({.strategy = Strategy::kOptimGrads}),
          copied({.allocator = AllocatorOptions::storage_resize()}),
          copied({.allocator = AllocatorOptions::fixed_pool(int64_t{64} << 20)}),
          copied({.allocator = AllocatorOptions::traced()})};
}

TEST(CudaTraining, AgreesWithTheCpu) {
  at::globalContext().setAllowTF32CuBLAS(false);
  for (const bool fused : {false, true}) {
    const Curve expected = train(comm::connect_alone(), at::kCPU, {{}, 2, fused});
    int number = 0;
    for (const ShardOptions& options : many_options()) {
      SCOPED_TRACE(number++);
      expect_close(train(comm::connect_alone(), kGpu, {options, 2, fused}), expected, 2e-5);
    }
  }
}

TEST(CudaTraining, AModelBuiltOnTheCpuIsShardedOntoTheGpu) {
  const Curve expected = train(comm::connect_alone(), kGpu, {copied()});
  DeviceModel model(kLayers, kWidth, at::TensorOptions(at::kCPU));
  ShardOptions options = copied();
  options.device = kGpu;
  const World world = comm::connect_alone();
  for (const auto& layer : model.layers) fully_shard(*layer, Mesh::shard(world), options);
  fully_shard(model, Mesh::shard(world), options);
  EXPECT_EQ(model.inlet->weight.device(), kGpu);
  const torch::Tensor loss = model.forward(rows_of(0, 0, kGpu)).square().mean();
  EXPECT_TRUE(torch::equal(loss.cpu(), expected.losses[0]));
  loss.backward();
  for (const torch::Tensor& leaf : parameters(model)) EXPECT_EQ(leaf.grad().device(), kGpu);
}

// Freed memory is filled with NaN, kernels that only take time stand anywhere in the computing stream, and the network
// is slower or faster than the computation: the bits must not change.
TEST(CudaStreams, NoTimingChangesABit) {
  const auto sleep_somewhere = [] {
    static std::mt19937 random(3);
    at::cuda::sleep(random() % 2'000'000);
  };
  for (ShardOptions options : many_options()) {
    const Curve expected = train(comm::connect_fabric(4, {std::chrono::nanoseconds(0), 1e15}), kGpu, {options, 2});
    options.allocator.poison = true;
    for (const double bandwidth : {1e15, 1e10, 1e9}) {
      const comm::FabricModel network{std::chrono::microseconds(5), bandwidth};
      const Plan plan{options, 2, true, sleep_somewhere};
      expect_same_bits(train(comm::connect_fabric(4, network), kGpu, plan), expected);
    }
  }
}

// LibTorch's own synchronising calls throw meanwhile.
TEST(CudaStreams, NothingOfAStepWaitsOnTheHost) {
  for (const ShardOptions& options : {copied(), copied({.precision = Precision::bf16()}), ShardOptions{}}) {
    const World world = comm::connect_alone();
    DeviceModel model(kLayers, kWidth, at::TensorOptions(kGpu));
    for (const auto& layer : model.layers) fully_shard(*layer, Mesh::shard(world), options);
    fully_shard(model, Mesh::shard(world), options);
    AdamW optimizer(parameters(model), AdamWOptions{.lr = 1e-3});
    const torch::Tensor rows = rows_of(0, 0, kGpu).to(options.precision.param.value_or(at::kFloat));
    for (int step = 0; step < 3; ++step) {
      const auto mode = step == 0 ? c10::cuda::SyncDebugMode::L_DISABLED : c10::cuda::SyncDebugMode::L_ERROR;
      c10::cuda::warning_state().set_sync_debug_mode(mode);
      model.forward(rows).to(at::kFloat).square().mean().backward();
      clip_grad_norm_(model, 1.0);
      optimizer.step();
      zero_grad(model);
    }
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
}

TEST(CudaMemory, SteadyStepsTakeNothingFromTheDevice) {
  const World world = comm::connect_alone();
  DeviceModel model(kLayers, kWidth, at::TensorOptions(kGpu));
  for (const auto& layer : model.layers) fully_shard(*layer, Mesh::shard(world), copied());
  const Unit root = fully_shard(model, Mesh::shard(world), copied());
  AdamW optimizer(parameters(model), AdamWOptions{.lr = 1e-3});
  int64_t allocations = 0, reserved = 0;
  for (int step = 0; step < 5; ++step) {
    model.forward(rows_of(step, 0, kGpu)).square().mean().backward();
    optimizer.step();
    zero_grad(model);
    const DeviceMemory memory = device_memory(kGpu).value();
    EXPECT_EQ(memory.retries, 0);
    if (step >= 2) {
      EXPECT_EQ(root.counters().buffer_allocations, allocations);
      EXPECT_EQ(memory.reserved, reserved);
    }
    allocations = root.counters().buffer_allocations;
    reserved = memory.reserved;
  }
  MemoryCategories categories = root.memory();
  categories.optimizer = optimizer.state_bytes();
  EXPECT_EQ(categories.gathered, 0);
  EXPECT_GT(categories.params, 0);
  EXPECT_THAT(cuda::memory_report(kGpu, categories), HasSubstr("optimizer"));
}

TEST(CudaMemory, WhatIsMissingIsToldByCategory) {
  std::string heard;
  set_advice_handler([&](const Advice& advice) { heard += advice.subject + ": " + advice.text; });
  cuda::report_out_of_memory(kGpu, [] { return MemoryCategories{.params = int64_t{3} << 30}; });
  EXPECT_THROW(torch::empty({int64_t{1} << 50}, at::device(kGpu).dtype(at::kByte)), c10::Error);
  EXPECT_THAT(heard, HasSubstr("out of memory"));
  EXPECT_THAT(heard, HasSubstr("parameters"));
  cuda::report_out_of_memory(kGpu, {});
  set_advice_handler({});
}

TEST(CudaRecompute, SeesTheRandomNumbersOfTheFirstRun) {
  const torch::Tensor x = torch::randn({1000}, at::device(kGpu)).requires_grad_();
  const TensorFunction drop = [](const at::Tensor& input) { return torch::dropout(input, 0.5, true); };
  const torch::Tensor y = recompute(drop, x);
  torch::randn({10}, at::device(kGpu));  // goes on drawing
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad() != 0, y != 0));
}

TEST(CudaFabric, ATransferTakesItsTime) {
  // 3 of 4 shards of 16 MiB at 10 GB/s.
  const World world = comm::connect_fabric(4, {std::chrono::microseconds(100), 1e10});
  const auto comm = world.connection->world();
  const torch::Tensor shard = torch::ones({int64_t{4} << 20}, at::device(kGpu));
  const torch::Tensor all = torch::zeros({int64_t{16} << 20}, at::device(kGpu));
  comm->all_gather(all, shard, {"gather", "warm up", ""}).wait();
  c10::cuda::device_synchronize();
  const auto begin = std::chrono::steady_clock::now();
  comm->all_gather(all, shard, {"gather", "a", ""}).wait();
  const double issued = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  c10::cuda::device_synchronize();
  const double complete = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(issued, 2e-3);
  EXPECT_NEAR(complete, 100e-6 + 3 * 16 * 1048576 / 1e10, 1.5e-3);
  EXPECT_TRUE(torch::equal(all, torch::ones_like(all)));
}

}  // namespace
}  // namespace fsdp::training_test
