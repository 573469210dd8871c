#include "kernels/raw/products/tiled_product.h"

#include <cmath>

#include "kernels/raw/products/amx.h"
#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

struct Layer {
  int64_t rows, outputs, k;
};

float number(const std::vector<Bf16>& numbers, int64_t place) { return to_float(numbers[static_cast<size_t>(place)]); }

std::vector<Bf16> run_layer(Layer layer, const std::vector<Bf16>& x, const std::vector<Bf16>& weight, int64_t stride) {
  std::vector<Bf16> y(static_cast<size_t>(layer.rows * stride), from_float<Bf16>(7));
  std::vector<float> scratch(static_cast<size_t>(tiled_product_scratch(layer.k)), NAN);
  tiled_product(layer.rows, layer.outputs, layer.k, x.data(), weight.data(), y.data(), stride, scratch.data());
  return y;
}

void check_layer(Layer layer) {
  const std::vector<Bf16> x = round_all(random_floats(layer.rows * layer.k, 1)),
                          weight = round_all(random_floats(layer.outputs * layer.k, 2));
  const int64_t stride = layer.outputs + 3;
  const std::vector<Bf16> y = run_layer(layer, x, weight, stride);
  for (int64_t row = 0; row < layer.rows; ++row)
    for (int64_t output = 0; output < stride; ++output) {
      double expected = output < layer.outputs ? 0 : 7;
      for (int64_t i = 0; i < layer.k && output < layer.outputs; ++i)
        expected += static_cast<double>(number(x, row * layer.k + i)) * number(weight, output * layer.k + i);
      const double bound = 1e-6 * static_cast<double>(layer.k) + std::abs(expected) / 256;
      ASSERT_NEAR(number(y, row * stride + output), expected, output < layer.outputs ? bound : 0)
          << layer.rows << " x " << layer.outputs << " of depth " << layer.k << " at " << row << ", " << output;
    }
}

TEST(TiledProduct, EqualsTheProductInDoublePrecision) {
  if (!amx::is_available()) GTEST_SKIP() << "this processor has no tiles";
  // Remainders of blocks, tiles and pairs; outputs packed in several parts; sums in parts, and rows beyond those that
  // wait for each other.
  for (const Layer layer : {Layer{1, 1, 2},
                            {31, 15, 30},
                            {32, 32, 32},
                            {33, 47, 64},
                            {64, 16, 66},
                            {100, 300, 576},
                            {40, 150, 4096},
                            {45, 270, 4130},
                            {1060, 20, 4160}})
    ASSERT_NO_FATAL_FAILURE(check_layer(layer));
}

// However many rows and outputs are multiplied at once.
TEST(TiledProduct, AnElementHasTheBitsOfASingleRow) {
  if (!amx::is_available()) GTEST_SKIP() << "this processor has no tiles";
  for (const int64_t k : {64, 100, 2048, 4130}) {
    const Layer layer = {70, 300, k};
    const std::vector<Bf16> x = round_all(random_floats(layer.rows * k, 1)),
                            weight = round_all(random_floats(layer.outputs * k, 2));
    const std::vector<Bf16> y = run_layer(layer, x, weight, layer.outputs);
    for (const int64_t row : {0, 33, 69})
      for (const int64_t output : {0, 17, 261, 299}) {
        const std::vector<Bf16> from(x.begin() + row * k, x.begin() + (row + 1) * k),
            with(weight.begin() + output * k, weight.begin() + (output + 1) * k);
        ASSERT_EQ(run_layer({1, 1, k}, from, with, 1)[0].bits,
                  y[static_cast<size_t>(row * layer.outputs + output)].bits)
            << row << ", " << output << " of depth " << k;
      }
  }
}

}  // namespace
}  // namespace fsdp::kernels::raw
