// NaNs go through the row kernels whatever bits they have, also where results are rounded without a look at them.
#include <cmath>
#include <limits>

#include "kernels/raw/rows/rms_norm.h"
#include "kernels/raw/rows/rope.h"
#include "kernels/raw/rows/swiglu.h"
#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kWidth = 33;  // two vectors and a rest

std::vector<Bf16> all_nans() {
  std::vector<Bf16> nans;
  for (uint32_t bits = 0x7F81; bits <= 0xFFFF; ++bits)
    if (std::isnan(to_float(Bf16{static_cast<uint16_t>(bits)}))) nans.push_back({static_cast<uint16_t>(bits)});
  return nans;
}

std::vector<Bf16> ones() { return std::vector<Bf16>(kWidth, from_float<Bf16>(1)); }

bool is_nan(Bf16 value) { return std::isnan(to_float(value)); }

// With `nan` at `place` of one input at a time.
void check_swiglu(Bf16 nan, size_t place) {
  for (int input = 0; input < 3; ++input) {
    std::vector<Bf16> inputs[3] = {ones(), ones(), ones()}, y = ones(), for_gate = ones(), for_up = ones();
    inputs[input][place] = nan;
    const auto& [grad_y, gate, up] = inputs;
    swiglu(gate.data(), up.data(), y.data(), kWidth);
    swiglu_backward(grad_y.data(), gate.data(), up.data(), for_gate.data(), for_up.data(), kWidth);
    ASSERT_EQ(is_nan(y[place]), input != 0);
    ASSERT_TRUE(is_nan(for_gate[place]));
    ASSERT_EQ(is_nan(for_up[place]), input != 2);
    ASSERT_FALSE(is_nan(y[place - 1]) || is_nan(for_gate[place - 1]) || is_nan(for_up[place - 1]));
  }
}

void check_rms_norm(Bf16 nan, size_t place) {
  std::vector<Bf16> x = ones(), residual = ones(), weight = ones(), sum = ones(), y = ones(), grad_x = ones();
  residual[place] = nan;
  float rstd = 0;
  rms_norm(
      RmsNormForward<Bf16>{x.data(), residual.data(), weight.data(), sum.data(), y.data(), &rstd, 1, kWidth, 1e-5f});
  ASSERT_TRUE(is_nan(sum[place]) && !is_nan(sum[place - 1]));
  for (const Bf16 value : y) ASSERT_TRUE(is_nan(value));
  std::vector<float> grad_weight(kWidth, 0);
  rms_norm_backward(RmsNormBackward<Bf16>{x.data(), nullptr, sum.data(), weight.data(), &rstd, grad_x.data(),
                                          grad_weight.data(), 1, kWidth});
  for (size_t i = 0; i < kWidth; ++i) ASSERT_TRUE(is_nan(grad_x[i]) && std::isnan(grad_weight[i])) << i;
}

void check_rope(Bf16 nan, size_t place) {
  constexpr int64_t kDim = 2 * kWidth;
  std::vector<Bf16> x(kDim, from_float<Bf16>(1)), factors = x, y = x;
  x[place] = nan;
  for (const bool inverse : {false, true}) {
    rope(RopePositions<Bf16>{x.data(), y.data(), kDim, kDim, factors.data(), factors.data(), 1, 1, kDim}, inverse);
    ASSERT_TRUE(is_nan(y[place]) && is_nan(y[place + kWidth]) && !is_nan(y[place - 1]));
  }
}

TEST(RawNan, OfAnyBitsStaysNan) {
  for_each_isa([] {
    for (const Bf16 nan : all_nans())
      for (const size_t place : {3u, 20u, 32u}) {
        SCOPED_TRACE("bits " + std::to_string(nan.bits) + " at " + std::to_string(place));
        ASSERT_NO_FATAL_FAILURE(check_swiglu(nan, place));
        ASSERT_NO_FATAL_FAILURE(check_rms_norm(nan, place));
        ASSERT_NO_FATAL_FAILURE(check_rope(nan, place));
      }
  });
}

TEST(RawNan, ComesOfInfinitiesThatCancelAndOfNoOthers) {
  for_each_isa([] {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<Bf16> gate = ones(), up = ones(), y = ones();
    up[1] = from_float<Bf16>(kInfinity);
    gate[2] = from_float<Bf16>(kInfinity);
    swiglu(gate.data(), up.data(), y.data(), kWidth);
    EXPECT_EQ(to_float(y[1]), kInfinity);
    EXPECT_EQ(to_float(y[2]), kInfinity);
    std::vector<Bf16> x = ones(), sum = ones();
    std::vector<Bf16> residual(kWidth, from_float<Bf16>(-kInfinity));
    x[0] = from_float<Bf16>(kInfinity);
    float rstd = 0;
    rms_norm(
        RmsNormForward<Bf16>{x.data(), residual.data(), gate.data(), sum.data(), y.data(), &rstd, 1, kWidth, 1e-5f});
    EXPECT_TRUE(is_nan(sum[0]));
    EXPECT_EQ(to_float(sum[1]), -kInfinity);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
