#include "kernels/flat/flat_kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "kernels/flat/pack.h"
#include "kernels/flat/sum_chunks.h"
#include "kernels/flat/sum_squares.h"

namespace fsdp::kernels::flat_kernels_test {
namespace {

// What the kernels of a device without memory were called for.
std::vector<std::string>& calls() {
  static std::vector<std::string> names;
  return names;
}

const FlatKernels kRecorder{
    [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
       const AdamWStep&) { calls().emplace_back("adamw_step"); },
    [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const SGDStep&) {
      calls().emplace_back("sgd_step");
    },
    [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const LionStep&) {
      calls().emplace_back("lion_step");
    },
    [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
       const ScheduleFreeStep&) { calls().emplace_back("schedule_free_step"); },
    [](const KeptWeights&, const at::Tensor&, const CodedMoment&, const CodedMoment&, const at::Tensor&,
       const AdamWStep&) { calls().emplace_back("low_bit_adamw_step"); },
    [](const at::Tensor&, const at::Tensor&, double, bool) { calls().emplace_back("pack_gradient"); },
    [](const at::Tensor&, const std::vector<at::Tensor>&, bool) { calls().emplace_back("sum_chunks"); },
    [](const at::Tensor& values) {
      calls().emplace_back("sum_squares");
      return at::empty({}, values.options().dtype(at::kDouble));
    }};

class FlatKernelsOfADevice : public ::testing::Test {
 protected:
  void SetUp() override {
    calls().clear();
    set_flat_kernels(c10::DeviceType::Meta, &kRecorder);
  }
  void TearDown() override { set_flat_kernels(c10::DeviceType::Meta, nullptr); }

  static at::Tensor make(int64_t numel, at::ScalarType dtype = at::kFloat) {
    return at::empty({numel}, at::device(at::kMeta).dtype(dtype));
  }
  static AdamWStep adamw() { return {1e-3, 0.9, 0.999, 1e-8, 0.1, 1}; }
  static SGDStep sgd() { return {1e-3, 0, 0, 0, false, MomentumState::kNone}; }
  static LionStep lion() { return {1e-3, 0.9, 0.99, 0.1}; }
  static ScheduleFreeStep schedule_free() { return {1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5, 2}; }
};

TEST_F(FlatKernelsOfADevice, AreFoundUntilTakenAway) {
  EXPECT_EQ(find_flat_kernels(c10::DeviceType::Meta), &kRecorder);
  EXPECT_EQ(find_flat_kernels(c10::DeviceType::CPU), nullptr);
  set_flat_kernels(c10::DeviceType::Meta, nullptr);
  EXPECT_EQ(find_flat_kernels(c10::DeviceType::Meta), nullptr);
}

TEST_F(FlatKernelsOfADevice, TakeContiguousTensorsOfItsOwn) {
  EXPECT_EQ(find_flat_kernels({make(3), make(3, at::kBFloat16), make(3, at::kHalf)}), &kRecorder);
  EXPECT_EQ(find_flat_kernels({make(3), make(3, at::kDouble)}), nullptr);
  EXPECT_EQ(find_flat_kernels({make(3), at::empty({3})}), nullptr);
  EXPECT_EQ(find_flat_kernels({make(6).view({2, 3}).t()}), nullptr);
}

TEST_F(FlatKernelsOfADevice, AreCalledForItsTensors) {
  const at::Tensor a = make(5), b = make(5), none;
  adamw_step(a, b, make(5), make(5), none, adamw());
  sgd_step(a, b, none, none, sgd());
  lion_step(a, b, make(5), none, lion());
  schedule_free_step(a, b, make(5), make(5), none, schedule_free());
  const CodedMoment moment{make(5, at::kByte), make(1), nullptr};
  low_bit_adamw_step({a}, b, moment, moment, none, adamw());
  pack_gradient(a, make(5, at::kBFloat16), 0.5, /*add=*/true);
  sum_chunks(a, {b, make(5)}, /*add=*/false);
  EXPECT_EQ(sum_squares_on_device(a).scalar_type(), at::kDouble);
  const std::vector<std::string> all = {"adamw_step",         "sgd_step",      "lion_step",  "schedule_free_step",
                                        "low_bit_adamw_step", "pack_gradient", "sum_chunks", "sum_squares"};
  EXPECT_EQ(calls(), all);
}

TEST_F(FlatKernelsOfADevice, LeaveTheRestToATen) {
  pack_gradient(make(6), make(6).view({2, 3}).t(), 0.5, /*add=*/false);
  sum_chunks(make(5, at::kDouble), {make(5, at::kDouble)}, /*add=*/false);
  EXPECT_EQ(sum_squares_on_device(make(5, at::kDouble)).dim(), 0);
  EXPECT_TRUE(calls().empty());
}

TEST_F(FlatKernelsOfADevice, AreNotCalledForTheCpu) {
  const at::Tensor a = at::ones({5}), none;
  adamw_step(a, at::ones({5}), at::zeros({5}), at::zeros({5}), none, adamw());
  sgd_step(a, at::ones({5}), none, none, sgd());
  pack_gradient(a, at::ones({5}), 1, /*add=*/false);
  sum_chunks(a, {at::ones({5})}, /*add=*/false);
  EXPECT_EQ(sum_squares(a), 5);
  EXPECT_TRUE(calls().empty());
}

TEST_F(FlatKernelsOfADevice, AreNamedWhereMissing) {
  set_flat_kernels(c10::DeviceType::Meta, nullptr);
  const at::Tensor a = make(5), none;
  try {
    adamw_step(a, a, a, a, none, adamw());
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("[adamw_step] got tensors on meta"), std::string::npos);
  }
  EXPECT_THROW(sgd_step(a, a, none, none, sgd()), c10::Error);
  EXPECT_THROW(low_bit_adamw_step({a}, a, {a, a, nullptr}, {a, a, nullptr}, none, adamw()), c10::Error);
  EXPECT_THROW(lion_step(a, a, a, none, lion()), c10::Error);
  EXPECT_THROW(schedule_free_step(a, a, a, a, none, schedule_free()), c10::Error);
}

TEST(FlatSums, OnTheDeviceEqualThoseOnTheHost) {
  torch::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t numel : {0, 1, 17, 5000}) {
      const at::Tensor values = at::randn({numel}).to(dtype), sum = sum_squares_on_device(values);
      EXPECT_EQ(sum.dim(), 0);
      EXPECT_EQ(sum.scalar_type(), at::kDouble);
      EXPECT_EQ(sum.item<double>(), sum_squares(values));
    }
  }
}

// A factor given as a tensor, as a number, and multiplied beforehand: the same bits.
TEST(FlatSteps, ScaleGradientsAlike) {
  torch::manual_seed(7);
  const float factor = 0.37F;
  for (const int64_t numel : {1, 17, 5000}) {
    const at::Tensor start = at::randn({numel}), gradient = at::randn({numel}), scaled = gradient * factor, none;
    std::vector<std::vector<at::Tensor>> results;
    for (int way = 0; way < 3; ++way) {
      const at::Tensor g = way == 0 ? scaled : gradient, scale = way == 1 ? at::scalar_tensor(factor) : none;
      const double number = way == 2 ? factor : 1;
      const at::Tensor adamw = start.clone(), m = at::zeros({numel}), v = at::zeros({numel});
      adamw_step(adamw, g, m, v, none, {1e-2, 0.9, 0.999, 1e-8, 0.1, 1, number, scale});
      const at::Tensor sgd = start.clone(), nesterov = start.clone(), buffer = at::zeros({numel});
      sgd_step(sgd, g, none, none, {1e-2, 0, 0, 0.1, false, MomentumState::kNone, number, scale});
      sgd_step(nesterov, g, buffer, none, {1e-2, 0.9, 0, 0.1, true, MomentumState::kFirstStep, number, scale});
      const at::Tensor lion = start.clone(), sign = at::zeros({numel});
      lion_step(lion, g, sign, none, {1e-2, 0.9, 0.99, 0.1, number, scale});
      const at::Tensor free = start.clone(), iterate = at::zeros({numel}), squares = at::zeros({numel});
      schedule_free_step(free, g, iterate, squares, none, {1e-2, 0.9, 0.999, 1e-8, 0.1, 1, 1, number, scale});
      results.push_back({adamw, m, v, sgd, nesterov, buffer, lion, sign, free, iterate, squares});
    }
    for (int way = 1; way < 3; ++way) {
      for (size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_TRUE(torch::equal(results[way][i], results[0][i])) << "way " << way << ", result " << i;
      }
    }
  }
}

// The model weight along, of each dtype, has the weight's bits rounded once; across blocks and at a short end.
TEST(FlatSteps, WriteTheWeightAlong) {
  torch::manual_seed(7);
  for (const int64_t numel : {1, 4099, 70'001}) {
    for (const auto weights : {at::kFloat, at::kDouble}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(c10::str(numel, " elements of ", weights, " into ", dtype));
        const auto options = at::TensorOptions().dtype(weights);
        const at::Tensor g = at::randn({numel}, options), first = at::zeros({numel}, options),
                         w = at::randn({numel}, options);
        const at::Tensor second = at::zeros({numel}, options), copy = at::full({numel}, 9, dtype);
        const auto expect_copy = [&] {
          EXPECT_TRUE(torch::equal(copy, w.to(dtype)));
          copy.fill_(9);
        };
        lion_step(w, g, first, copy, {1e-2, 0.9, 0.99, 0.1});
        expect_copy();
        schedule_free_step(w, g, first, second, copy, {1e-2, 0.9, 0.999, 1e-8, 0.1, 1, 1});
        expect_copy();
        adamw_step(w, g, first, second, copy, {1e-2, 0.9, 0.999, 1e-8, 0.1, 2});
        expect_copy();
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::flat_kernels_test
