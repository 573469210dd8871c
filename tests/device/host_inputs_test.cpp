// Inputs of regions in the host's memory, on a device that is not there: the same gradients, every order among streams,
// and copies that nothing waits for but who needs them.
#include "fsdp/recompute/host_inputs.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/recompute/recompute.h"
#include "tests/device/device_model.h"
#include "tests/device/fake_device.h"
#include "tests/support/ranks.h"

namespace fsdp::host_inputs_test {
namespace {

using testing::DeviceModel;
using testing::fake_device;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::stream_clocks;
using testing::StreamClocks;
using testing::StreamTask;

constexpr int kLayers = 4;
constexpr int64_t kWidth = 24, kRows = 16;

torch::Tensor run(DeviceModel& model, const std::shared_ptr<HostInputs>& rest, c10::Device device) {
  torch::Tensor x = torch::randn({kRows, kWidth}, testing::generator(4)).to(device).requires_grad_();
  for (const auto& layer : model.layers) {
    x = recompute([layer](const torch::Tensor& input) { return input + layer->forward(input); }, x, rest);
  }
  return x.square().mean();
}

std::vector<torch::Tensor> gradients_of(const DeviceModel& model) {
  std::vector<torch::Tensor> gradients;
  for (const auto& layer : model.layers) gradients.push_back(layer->weight.grad().cpu());
  return gradients;
}

std::vector<StreamTask> copies() {
  std::vector<StreamTask> found;
  const testing::StreamKey own =
      testing::key_of(c10::impl::VirtualGuardImpl(fake_device().type()).getStream(fake_device()));
  for (const StreamTask& task : stream_clocks().tasks()) {
    if (task.name == "copy" && task.stream != own) found.push_back(task);
  }
  return found;
}

TEST(HostInputs, GradientsAreThoseOfInputsThatStay) {
  DeviceModel plain(kLayers, kWidth, at::TensorOptions(at::kCPU));
  run(plain, nullptr, at::kCPU).backward();
  DeviceModel model(kLayers, kWidth, at::TensorOptions(fake_device()));
  const auto rest = std::make_shared<HostInputs>();
  stream_clocks().clear();
  for (const int times : {1, 2}) {  // a second step, and a graph that is kept
    const torch::Tensor loss = run(model, rest, fake_device());
    for (int i = 0; i < times; ++i) {
      for (const auto& layer : model.layers) layer->weight.mutable_grad() = torch::Tensor();
      loss.backward({}, /*retain_graph=*/i + 1 < times);
    }
    const auto expected = gradients_of(plain), actual = gradients_of(model);
    for (int i = 0; i < kLayers; ++i) EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-5, 1e-6)) << i;
  }
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
  EXPECT_EQ(stream_clocks().num_recorded_streams(), 0);
}

// Each goes out once and, but for the last, which is still there, comes in once.
TEST(HostInputs, EachTravelsOnceEachWay) {
  DeviceModel model(kLayers, kWidth, at::TensorOptions(fake_device()));
  const auto rest = std::make_shared<HostInputs>();
  stream_clocks().clear();
  const torch::Tensor loss = run(model, rest, fake_device());
  EXPECT_THAT(copies(), SizeIs(kLayers));
  loss.backward();
  EXPECT_THAT(copies(), SizeIs(2 * kLayers - 1));
}

TEST(HostInputs, SmallOnesAndThoseOfTheCpuStay) {
  EXPECT_FALSE(HostInputs::moves(torch::zeros({1 << 20})));
  EXPECT_FALSE(HostInputs::moves(torch::Tensor()));
  EXPECT_FALSE(HostInputs::moves(torch::zeros({8}, at::TensorOptions(fake_device()))));
  EXPECT_TRUE(HostInputs::moves(torch::zeros({256}, at::TensorOptions(fake_device()))));
}

}  // namespace
}  // namespace fsdp::host_inputs_test
