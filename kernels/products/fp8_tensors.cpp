#include "kernels/products/fp8_tensors.h"

#include <ATen/ATen.h>

namespace fsdp::kernels {
namespace {

constexpr int64_t kGranule = 16;  // of both dimensions of _scaled_mm's second factor
constexpr int kExponentBias = 127, kMantissaBits = 23;

struct TensorFormat {
  at::ScalarType type;
  int exponent;  // of the largest number, which is 1.75 * 2^exponent
  int lowest;    // of scales
};

TensorFormat tensor_format_of(Fp8Recipe recipe, Fp8Operand operand) {
  const bool is_wide = recipe == Fp8Recipe::kTensorwise && operand == Fp8Operand::kGradient;
  return is_wide ? TensorFormat{at::kFloat8_e5m2, 15, -117} : TensorFormat{at::kFloat8_e4m3fn, 8, -124};
}

at::Tensor is_not_finite(const at::Tensor& x) { return (x - x).ne(0); }

// Of each block, the exponent of the lowest power of two that keeps its finite numbers within the format: int32. By the
// bits of the largest, since no logarithm is exact.
at::Tensor exponents_of(const at::Tensor& matrix, Fp8Recipe recipe, const TensorFormat& format) {
  at::Tensor sizes = at::maximum(matrix, matrix.neg());
  sizes.masked_fill_(is_not_finite(matrix), 0);
  const at::Tensor largest =
      recipe == Fp8Recipe::kRowwise ? sizes.amax(1, /*keepdim=*/true) : sizes.amax().view({1, 1});
  const at::Tensor bits = largest.to(at::kFloat).view(at::kInt);
  constexpr int kMantissa = (1 << kMantissaBits) - 1, kSevenQuarters = 3 << (kMantissaBits - 2);
  const at::Tensor exponent = bits.bitwise_right_shift(kMantissaBits) - (kExponentBias + format.exponent);
  return (exponent + bits.bitwise_and(kMantissa).gt(kSevenQuarters)).clamp_min(format.lowest);
}

at::Tensor power_of_two(const at::Tensor& exponents) {
  return (exponents + kExponentBias).bitwise_left_shift(kMantissaBits).view(at::kFloat);
}

// With columns of zeros, which add nothing to a sum.
at::Tensor padded(const at::Tensor& numbers) {
  const int64_t columns = (numbers.size(1) + kGranule - 1) / kGranule * kGranule;
  if (columns == numbers.size(1)) return numbers;
  const at::Tensor result = at::zeros({numbers.size(0), columns}, numbers.options().dtype(at::kByte));
  result.narrow(1, 0, numbers.size(1)).copy_(numbers.view(at::kByte));
  return result.view(numbers.scalar_type());
}

}  // namespace

bool has_scaled_product(Fp8Recipe recipe) { return recipe == Fp8Recipe::kTensorwise || recipe == Fp8Recipe::kRowwise; }

Fp8Tensor to_fp8_tensor(const at::Tensor& matrix, Fp8Recipe recipe, Fp8Operand operand) {
  const at::Tensor from = matrix.detach();
  const TensorFormat format = tensor_format_of(recipe, operand);
  if (from.numel() == 0) return {from.to(format.type), at::ones({1, 1}, from.options().dtype(at::kFloat))};
  const at::Tensor exponents = exponents_of(from, recipe, format);
  at::Tensor numbers = from.to(at::kFloat) * power_of_two(-exponents);
  // e4m3 has no infinity, and what a conversion makes of one differs between devices.
  if (format.type == at::kFloat8_e4m3fn) numbers.masked_fill_(is_not_finite(numbers), NAN);
  return {numbers.to(format.type).contiguous(), power_of_two(exponents)};
}

at::Tensor scaled_product(const Fp8Tensor& a_MK, const Fp8Tensor& b_NK, at::ScalarType type) {
  const int64_t rows = a_MK.numbers.size(0), columns = b_NK.numbers.size(0);
  if (a_MK.numbers.numel() == 0) return at::zeros({rows, columns}, a_MK.scales.options().dtype(type));
  const at::Tensor a = padded(a_MK.numbers), b = padded(b_NK.numbers).t();
  if (a_MK.scales.numel() == 1 && b_NK.scales.numel() == 1)
    return at::_scaled_mm(a, b, a_MK.scales.squeeze(), b_NK.scales.squeeze(), {}, {}, type);
  // A row's scale is the same in all of its sums. _scaled_mm takes scales of rows on some devices and for bf16 only.
  const at::Tensor one = at::ones({}, a_MK.scales.options());
  return (at::_scaled_mm(a, b, one, one, {}, {}, at::kFloat) * a_MK.scales * b_NK.scales.t()).to(type);
}

at::Tensor fp8_product_on_device(const at::Tensor& x, const at::Tensor& weight, int64_t recipe_number) {
  const auto recipe = static_cast<Fp8Recipe>(recipe_number);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return scaled_product(to_fp8_tensor(x.flatten(0, -2), recipe, Fp8Operand::kActivation),
                        to_fp8_tensor(weight, recipe, Fp8Operand::kWeight), x.scalar_type())
      .view(sizes);
}

void check_fp8_capability(int compute_capability) {
  constexpr int kFirst = 89;  // Ada; 90 is Hopper
  TORCH_CHECK(compute_capability >= kFirst, "[fp8_linear] got a GPU of compute capability ", compute_capability / 10,
              ".", compute_capability % 10,
              ", expected 8.9, 9.0 or newer: older ones have no products of fp8 numbers. Train in bf16 there.");
}

}  // namespace fsdp::kernels
