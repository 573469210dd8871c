// Ranks that are processes with GPUs. The test itself never uses CUDA, which does not survive a fork, so every child
// says whether there is a GPU. A program of its own: no other test may have used CUDA before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "fsdp/comm/transport/device_transports.h"
#include "fsdp/fsdp.h"
#include "tests/device/device_model.h"
#include "tests/support/rank_processes.h"

namespace fsdp {
namespace {

using testing::DeviceModel;
using testing::RankProcesses;

constexpr const char* kNoGpu = "there is no GPU here";
constexpr int kSteps = 4;

// Loads CUDA where there is a GPU, without which its libraries may not be installed.
int count_gpus() {
  if (!std::filesystem::exists("/proc/driver/nvidia/gpus")) return 0;
  load_cuda();
  return static_cast<int>(torch::cuda::device_count());
}

// Losses of some steps, as text.
std::string train(const World& world, c10::Device device) {
  at::globalContext().setAllowTF32CuBLAS(false);
  DeviceModel model(3, 64, at::TensorOptions(device));
  for (const auto& layer : model.layers) fully_shard(*layer, Mesh::shard(world));
  fully_shard(model, Mesh::shard(world));
  SGD optimizer(parameters(model), {.lr = 0.05});
  std::ostringstream losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
    const torch::Tensor rows = torch::randn({8 * world.size, 64}, generator).narrow(0, 8 * world.rank, 8).to(device);
    const torch::Tensor loss = model.forward(rows).square().mean();
    loss.backward();
    clip_grad_norm_(model, 1.0);
    optimizer.step();
    zero_grad(model);
    losses << sum_over_ranks(world, loss.detach()).item<double>() << ' ';
  }
  return losses.str();
}

std::vector<double> numbers_in(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<double>(stream), {}};
}

std::string run(int size, DeviceTransportKind kind, const std::function<c10::Device(int rank)>& device_of) {
  RankProcesses ranks;
  int needed = 0;  // GPUs, by all ranks: where one is missing, none starts
  for (int rank = 0; rank < size; ++rank) {
    if (device_of(rank).is_cuda()) needed = std::max(needed, device_of(rank).index() + 1);
  }
  for (int rank = 0; rank < size; ++rank) {
    comm::ConnectOptions options = testing::options_for("gloo", rank, size);
    options.device_transport = kind;
    ranks.start(rank, size, options, [device_of, needed](const World& world) -> std::string {
      if (needed > 0 && count_gpus() < needed) return kNoGpu;
      return train(world, device_of(world.rank));
    });
  }
  std::string text;
  for (int rank = 0; rank < size; ++rank) {
    const testing::RankResult result = ranks.result(rank, std::chrono::seconds(120));
    if (rank > 0 && text != kNoGpu) {
      EXPECT_EQ(result.text, text);
    }
    text = result.text;
  }
  return text;
}

void expect_like_the_cpu(const std::string& text) {
  const std::vector<double> expected = numbers_in(run(2, DeviceTransportKind::kAuto, [](int) { return at::kCPU; }));
  const std::vector<double> losses = numbers_in(text);
  ASSERT_EQ(losses.size(), expected.size()) << text;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]);
}

TEST(CudaRanks, TwoOnOneGpuTalkThroughTheHost) {
  const std::string text = run(2, DeviceTransportKind::kHost, [](int) { return c10::Device(c10::kCUDA, 0); });
  if (text == kNoGpu) GTEST_SKIP() << text;
  expect_like_the_cpu(text);
}

TEST(CudaRanks, TwoWithAGpuEachTalkThroughNccl) {
  const std::string text = run(2, DeviceTransportKind::kNative,
                               [](int rank) { return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank)); });
  if (text == kNoGpu) GTEST_SKIP() << "there is no second GPU here";
  expect_like_the_cpu(text);
}

// NCCL with one rank, through the transport's factory: its settings, streams and shutdown.
TEST(CudaRanks, NcclConnectsAloneAndLeaves) {
  RankProcesses ranks;
  ranks.start(0, 1, {}, [](const World&) -> std::string {
    if (count_gpus() == 0) return kNoGpu;
    const c10::Device gpu(c10::kCUDA, 0);
    comm::DeviceGroup group{gpu, 0, 1, "alone", c10::make_intrusive<c10d::HashStore>(), std::chrono::seconds(60), true};
    const auto nccl = comm::find_device_transports(c10::kCUDA)->connect(group);
    const torch::Tensor shard = torch::arange(1000, at::device(gpu).dtype(at::kFloat));
    const torch::Tensor all = torch::zeros_like(shard), sum = torch::ones_like(shard), copy = shard.clone();
    nccl->all_gather(all, shard, 0)->wait();
    nccl->reduce_scatter(copy, sum, {}, comm::Accumulate::kAdd, 0)->wait();
    nccl->broadcast(all, 0, 0)->wait();
    const bool is_right = torch::equal(all, shard) && torch::equal(sum, shard + 1);
    nccl->shutdown();
    return is_right ? "right" : "wrong";
  });
  const std::string text = ranks.result(0).text;
  if (text == kNoGpu) GTEST_SKIP() << text;
  EXPECT_EQ(text, "right");
}

}  // namespace
}  // namespace fsdp
