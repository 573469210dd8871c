// Products of fp8 numbers against LibTorch's own fp8 tensors, multiplied in fp64.
#include "kernels/products/fp8_linear.h"

#include <ATen/ops/_scaled_mm.h>

#include <cmath>

#include "kernels/products/fp8_history.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/fp8_weights.h"
#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"
#include "tests/kernels/calls_of.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::fp8_test {
namespace {

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kBlockwise, Fp8Recipe::kMx};

struct Scaled {
  at::Tensor numbers;  // fp8
  double scale = 1;
};

// The lowest power of two that keeps all of them within the format.
Scaled scaled(const at::Tensor& block, at::ScalarType format) {
  const double limit = format == at::kFloat8_e4m3fn ? 448 : 57344, largest = block.abs().max().item<double>();
  const double scale = largest == 0 ? 1 : std::exp2(std::ceil(std::log2(largest / limit)));
  return {(block.to(at::kFloat) / scale).to(format), scale};
}

at::Tensor rounded(const at::Tensor& matrix, int64_t rows, int64_t columns, at::ScalarType format) {
  at::Tensor result = matrix.to(at::kDouble);
  for (int64_t row = 0; row < matrix.size(0); row += rows) {
    for (int64_t column = 0; column < matrix.size(1); column += columns) {
      at::Tensor block = result.narrow(0, row, std::min(rows, matrix.size(0) - row))
                             .narrow(1, column, std::min(columns, matrix.size(1) - column));
      const auto [numbers, scale] = scaled(block, format);
      block.copy_(numbers.to(at::kDouble) * scale);
    }
  }
  return result;
}

// As the table in fp8_recipe.h has it; `matrix` is summed over along its columns.
at::Tensor expected_operand(const at::Tensor& matrix, Fp8Recipe recipe, Fp8Operand operand) {
  constexpr int64_t kAll = int64_t{1} << 40;
  switch (recipe) {
    case Fp8Recipe::kTensorwise:
      return rounded(matrix, kAll, kAll, operand == Fp8Operand::kGradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
    case Fp8Recipe::kRowwise:
      return rounded(matrix, 1, kAll, at::kFloat8_e4m3fn);
    case Fp8Recipe::kBlockwise:
      return rounded(matrix, operand == Fp8Operand::kWeight ? 128 : 1, 128, at::kFloat8_e4m3fn);
    default:
      return rounded(matrix, 1, 32, at::kFloat8_e4m3fn);
  }
}

struct Results {
  at::Tensor y, grad_x, grad_weight;
};

Results expected_results(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad, Fp8Recipe recipe) {
  const auto times = [&](const at::Tensor& a, Fp8Operand of_a, const at::Tensor& b, Fp8Operand of_b) {
    return expected_operand(a, recipe, of_a).mm(expected_operand(b, recipe, of_b).t());
  };
  using enum Fp8Operand;
  return {times(x, kActivation, weight, kWeight), times(grad, kGradient, weight.t(), kWeight),
          times(grad.t(), kGradient, x.t(), kActivation)};
}

TEST(Fp8Linear, EqualsProductsOfLibtorchsFp8Numbers) {
  torch::manual_seed(7);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Fp8Recipe recipe : kRecipes) {
      for (const int64_t tokens : {1, 40, 300}) {
        SCOPED_TRACE(::testing::Message() << name(recipe) << ", " << dtype << ", " << tokens << " tokens");
        const at::Tensor x = (at::randn({tokens, 256}) * at::randn({tokens, 1}).exp()).to(dtype).requires_grad_();
        const at::Tensor weight = (at::randn({128, 256}) * 0.02).to(dtype).requires_grad_();
        const at::Tensor grad = (at::randn({tokens, 128}) * 1e-4).to(dtype);
        const at::Tensor y = fp8_linear(x, weight, recipe);
        y.backward(grad);
        const Results expected = expected_results(x.detach(), weight.detach(), grad, recipe);
        const double tolerance = dtype == at::kFloat ? 4e-6 : 1.2e-2;  // sums in fp32; results in bf16
        EXPECT_LE(relative_difference(y, expected.y), tolerance);
        EXPECT_LE(relative_difference(x.grad() * 1e4, expected.grad_x * 1e4), tolerance);
        EXPECT_LE(relative_difference(weight.grad() * 1e4, expected.grad_weight * 1e4), tolerance);
      }
    }
  }
}

// Rows of 32 numbers, each a block, of any magnitude. Numbers of a row are within `octaves` of its largest, so that a
// sum of products fits into fp32's 24 bits whatever its order: 32 of at most 480 * 480, in steps of 1.
at::Tensor blocks_of(int64_t rows, int octaves, int lowest_exponent) {
  const at::Tensor numbers = at::exp2(-at::rand({rows, 32}) * octaves) * at::randint(-1, 2, {rows, 32});
  return numbers * at::exp2(at::randint(lowest_exponent, 40, {rows, 1}).to(at::kFloat));
}

// Every eighth row is one of these: zeros; one large number beside such that are subnormal in e4m3; not a number;
// infinity; numbers that are subnormal in fp32, but in bf16, where some processors multiply them as zeros.
void add_strange_blocks(at::Tensor& blocks, at::ScalarType dtype) {
  for (int64_t row = 0; row < blocks.size(0); row += 8) {
    at::Tensor block = blocks[row];
    switch (row / 8 % 5) {
      case 0:
        block.zero_();
        break;
      case 1:
        block.copy_(at::randint(-7, 8, {32}) * 0x1p-9).narrow(0, row % 32, 1).fill_(448);
        break;
      case 2:
        block[row % 32] = NAN;
        break;
      case 3:
        block[row % 32] = row % 16 == 0 ? INFINITY : -INFINITY;
        break;
      default:
        if (dtype == at::kFloat) block.copy_(at::randint(-65536, 65536, {32}) * 0x1p-149);
    }
  }
}

// In fp64: the lowest power of two, but none below 2^-124, that keeps all finite numbers of a row within e4m3, and the
// nearest of its numbers.
at::Tensor rows_in_e4m3(const at::Tensor& rows) {
  const at::Tensor x = at::where(rows.isinf(), NAN, rows.to(at::kDouble));
  const at::Tensor largest = at::where(x.isfinite(), x.abs(), 0).amax(1, /*keepdim=*/true);
  const at::Tensor scale = at::exp2((largest / 448).log2().ceil().clamp_min(-124));
  return (x / scale).to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale;
}

TEST(Fp8Linear, AMillionProductsOfBlocksHaveTheBitsOfFp64) {
  torch::manual_seed(11);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = blocks_of(1024, /*octaves=*/5, -40), weight = blocks_of(1024, /*octaves=*/2, -4);
    add_strange_blocks(x, dtype);
    weight[0].zero_();
    weight[8][5] = NAN;
    weight[16][7] = INFINITY;
    x = x.to(dtype);
    weight = weight.to(dtype);
    const at::Tensor expected = rows_in_e4m3(x).mm(rows_in_e4m3(weight).t()).to(at::kFloat).to(dtype);
    for (const Fp8Recipe recipe : {Fp8Recipe::kMx, Fp8Recipe::kRowwise}) {
      const at::Tensor y = fp8_linear(x, weight, recipe), differs = (y != expected) & ~(y.isnan() & expected.isnan());
      const int64_t wrong = differs.sum().item<int64_t>();
      EXPECT_EQ(wrong, 0) << name(recipe) << ", " << dtype
                          << ", the first: " << (wrong == 0 ? at::Tensor() : differs.nonzero()[0]);
    }
  }
}

// Whether LibTorch multiplies fp8 numbers on this CPU: not with AVX2 alone.
bool has_scaled_mm() {
  try {
    const at::Tensor numbers = at::ones({16, 16}).to(at::kFloat8_e4m3fn), scale = at::ones({});
    at::_scaled_mm(numbers, numbers.t(), scale, scale, {}, {}, at::kFloat);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

constexpr Fp8Recipe kOfDevices[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise};

// How devices with products of fp8 numbers hold a factor; the CPU holds the same numbers in the dtype they came in.
TEST(Fp8Tensors, StandForTheNumbersOfTheCpu) {
  torch::manual_seed(12);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor all = blocks_of(512, /*octaves=*/20, -140);
    add_strange_blocks(all, dtype);
    for (const Fp8Recipe recipe : kOfDevices) {
      for (const Fp8Operand operand : {Fp8Operand::kActivation, Fp8Operand::kWeight, Fp8Operand::kGradient}) {
        SCOPED_TRACE(::testing::Message()
                     << name(recipe) << ", " << dtype << ", operand " << static_cast<int>(operand));
        for (const at::Tensor& matrix : {all.to(dtype), all.narrow(0, 8, 1).to(dtype), all.narrow(0, 1, 1).to(dtype)}) {
          const Fp8Tensor tensor = to_fp8_tensor(matrix, recipe, operand);
          const at::Tensor numbers = (tensor.numbers.to(at::kDouble) * tensor.scales.to(at::kDouble)).to(dtype);
          const at::Tensor expected = round_to_fp8(matrix, recipe, operand, SummedOver::kColumns);
          EXPECT_TRUE(at::allclose(numbers, expected, 0, 0, /*equal_nan=*/true));
        }
      }
    }
  }
}

TEST(Fp8Tensors, AreMultipliedAsTheCpuDoes) {
  if (!has_scaled_mm()) GTEST_SKIP() << "this CPU has no at::_scaled_mm";
  torch::manual_seed(13);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Fp8Recipe recipe : kOfDevices) {
      for (const int64_t tokens : {1, 40, 300}) {  // 40 and 1 are no multiples of 16, which a sum over tokens pads
        SCOPED_TRACE(::testing::Message() << name(recipe) << ", " << dtype << ", " << tokens << " tokens");
        const at::Tensor x = (at::randn({tokens, 256}) * at::randn({tokens, 1}).exp()).to(dtype);
        const at::Tensor weight = (at::randn({128, 256}) * 0.02).to(dtype), grad = (at::randn({tokens, 128})).to(dtype);
        const Results expected = expected_results(x, weight, grad, recipe);
        const auto times = [&](const at::Tensor& a, Fp8Operand of_a, const at::Tensor& b, Fp8Operand of_b) {
          const at::Tensor y = scaled_product(to_fp8_tensor(a, recipe, of_a), to_fp8_tensor(b, recipe, of_b), dtype);
          EXPECT_EQ(y.scalar_type(), dtype);
          return y;
        };
        using enum Fp8Operand;
        const double tolerance = dtype == at::kFloat ? 4e-6 : 1.2e-2;
        EXPECT_LE(relative_difference(times(x, kActivation, weight, kWeight), expected.y), tolerance);
        EXPECT_LE(relative_difference(times(grad, kGradient, weight.t(), kWeight), expected.grad_x), tolerance);
        EXPECT_LE(relative_difference(times(grad.t(), kGradient, x.t(), kActivation), expected.grad_weight), tolerance);
      }
    }
  }
  const at::Tensor none = at::empty({0, 32}), weight = at::randn({16, 32});
  EXPECT_EQ(fp8_product_on_device(none, weight, static_cast<int64_t>(Fp8Recipe::kRowwise)).sizes(),
            (at::IntArrayRef{0, 16}));
}

TEST(Fp8Tensors, NeedAGpuThatHasSuchProducts) {
  for (const int capability : {89, 90, 100}) check_fp8_capability(capability);
  try {
    check_fp8_capability(86);
    FAIL() << "8.6 was taken";
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    EXPECT_NE(what.find("got a GPU of compute capability 8.6, expected 8.9, 9.0 or newer"), std::string::npos) << what;
    EXPECT_NE(what.find("Train in bf16 there"), std::string::npos) << what;
  }
}

// The operator that GPUs have tensor cores for.
TEST(Fp8Linear, EqualsScaledMm) {
  if (!has_scaled_mm()) GTEST_SKIP() << "this CPU has no at::_scaled_mm";
  torch::manual_seed(8);
  const at::Tensor x = at::randn({48, 64}), weight = at::randn({32, 64});
  const Scaled a = scaled(x, at::kFloat8_e4m3fn), b = scaled(weight, at::kFloat8_e4m3fn);
  const at::Tensor expected = at::_scaled_mm(a.numbers, b.numbers.t(), at::tensor(static_cast<float>(a.scale)),
                                             at::tensor(static_cast<float>(b.scale)), {}, {}, at::kFloat);
  EXPECT_LE(relative_difference(fp8_linear(x, weight, Fp8Recipe::kTensorwise), expected), 4e-6);
}

TEST(Fp8Linear, TakesWeightsThatAreMarked) {
  const at::Tensor x = at::randn({2, 3, 32}), weight = at::randn({16, 32}), other = at::randn({16, 32});
  EXPECT_FALSE(fp8_recipe_of(weight).has_value());
  set_fp8(weight, Fp8Recipe::kMx);
  EXPECT_EQ(fp8_recipe_of(weight), Fp8Recipe::kMx);
  const at::Tensor expected = fp8_linear(x, weight, Fp8Recipe::kMx);
  EXPECT_FALSE(at::allclose(expected, at::linear(x, weight)));
  EXPECT_TRUE(at::equal(kernels::linear(x, weight), expected));
  const auto fused = fused_linear(x, {weight, other});
  EXPECT_TRUE(at::equal(fused[0], expected));
  EXPECT_TRUE(at::allclose(fused[1], at::linear(x, other), 1e-4, 1e-5));
  set_fp8(weight, std::nullopt);
  EXPECT_TRUE(at::allclose(kernels::linear(x, weight), at::linear(x, weight), 1e-4, 1e-5));
}

TEST(Fp8Linear, WeightsThatLieSideBySideAreMultipliedApart) {
  const at::Tensor x = at::randn({4, 32}), both = at::randn({48, 32});
  const std::vector<at::Tensor> weights = {both.narrow(0, 0, 16), both.narrow(0, 16, 32)};
  ASSERT_TRUE(lie_side_by_side(weights));
  set_fp8(weights[1], Fp8Recipe::kRowwise);
  const CallsOf calls("fsdp::fp8_linear");
  const auto results = fused_linear(x, weights);
  EXPECT_EQ(calls.count(), 1);
  EXPECT_TRUE(at::equal(results[1], fp8_linear(x, weights[1], Fp8Recipe::kRowwise)));
}

TEST(Fp8Linear, FillsTheSlotOfTheWeightsGradient) {
  torch::manual_seed(9);
  const at::Tensor x = at::randn({40, 64}).requires_grad_(), weight = at::randn({32, 64}).requires_grad_();
  fp8_linear(x, weight, Fp8Recipe::kRowwise).sum().backward();
  const at::Tensor expected = weight.grad().clone(), target = at::ones({32, 64});
  weight.mutable_grad().reset();
  const SlotOwner owner(weight, target, /*is_added=*/true, /*factor=*/0.5);
  fp8_linear(x, weight, Fp8Recipe::kRowwise).sum().backward();
  EXPECT_LE(relative_difference(target - 1, expected * 0.5), 1e-5);
}

// Numbers that the last steps saw decide; larger ones are cut off.
TEST(Fp8Linear, DelayedScalesAreThoseOfEarlierSteps) {
  torch::manual_seed(10);
  const at::Tensor weight = at::randn({32, 64});
  const auto history = fp8_history_of(weight);
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor y = fp8_linear(x, weight, Fp8Recipe::kDelayed);
    history->push(history->seen());
    return y;
  };
  const auto expected = [&](const at::Tensor& x, double scale) {
    const at::Tensor cut = (x / scale).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale;
    return cut.mm(expected_operand(weight, Fp8Recipe::kTensorwise, Fp8Operand::kWeight).t());
  };
  const at::Tensor large = at::randn({8, 64}) * 100, small = at::randn({8, 64}) * 1e-3;
  const double scale_of_large = scaled(large, at::kFloat8_e4m3fn).scale;
  const double scale_of_small = scaled(small, at::kFloat8_e4m3fn).scale;
  EXPECT_TRUE(at::equal(step(small), fp8_linear(small, at::Tensor(weight.clone()), Fp8Recipe::kTensorwise)));
  EXPECT_LE(relative_difference(step(large), expected(large, scale_of_small)), 4e-6);  // all cut off
  for (size_t i = 0; i < Fp8History::kSteps; ++i)
    ASSERT_LE(relative_difference(step(small) * 1e3, expected(small, scale_of_large) * 1e3), 4e-6) << i;
  EXPECT_LE(relative_difference(step(small) * 1e3, expected(small, scale_of_small) * 1e3), 4e-6);
}

TEST(Fp8Linear, RefusesWhatItCannotMultiply) {
  const at::Tensor x = at::randn({4, 32}), weight = at::randn({16, 32});
  const auto refusal = [](const at::Tensor& x, const at::Tensor& weight) -> std::string {
    try {
      fp8_linear(x, weight, Fp8Recipe::kRowwise);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "taken";
  };
  EXPECT_NE(refusal(x, weight.to(at::kBFloat16)).find("got x in Float and a weight in BFloat16"), std::string::npos);
  EXPECT_NE(refusal(x.to(at::kHalf), weight.to(at::kHalf)).find("expected both in float32"), std::string::npos);
  EXPECT_NE(refusal(at::randn({4, 31}), weight).find("expected x [..., in]"), std::string::npos);
  EXPECT_NE(refusal(x.to(at::kMeta), weight).find("expected both on one device"), std::string::npos);
}

TEST(Fp8Linear, HasFirstDerivativesOnly) {
  torch::manual_seed(14);
  expect_first_derivatives_only([](const Inputs& in) { return fp8_linear(in[0], in[1], Fp8Recipe::kRowwise); },
                                {at::randn({7, 64}), at::randn({32, 64})}, "fp8_linear");
}

}  // namespace
}  // namespace fsdp::kernels::fp8_test
