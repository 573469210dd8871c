#include "kernels/raw/products/few_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/raw/products/pair_gemm.h"
#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

struct FewRowsShape {
  int64_t rows, k, outputs;
};

constexpr int64_t kRows[] = {1, 2, 3, 4, 7, 8, 17}, kDepths[] = {1, 16, 31, 32, 33, 48, 100, 576},
                  kOutputs[] = {1, 7, 8, 16, 50};

double dot(const std::vector<float>& x, const std::vector<float>& weight, FewRowsShape shape, int64_t row,
           int64_t output) {
  double total = 0;
  for (int64_t i = 0; i < shape.k; ++i)
    total += static_cast<double>(x[static_cast<size_t>(row * shape.k + i)]) *
             weight[static_cast<size_t>(output * shape.k + i)];
  return total;
}

std::vector<float> widen_all(const std::vector<Bf16>& values) {
  std::vector<float> wide;
  for (const Bf16 value : values) wide.push_back(to_float(value));
  return wide;
}

template <class W, class Y>
void check_few_rows(FewRowsShape shape) {
  const std::vector<float> x = random_floats(shape.rows * shape.k, 1);
  const std::vector<float> exact = random_floats(shape.outputs * shape.k, 2);
  std::vector<W> weight;
  std::vector<float> wide = exact, spread = x;
  if constexpr (std::is_same_v<W, Bf16>) {
    weight = round_all(exact);
    wide = widen_all(weight);
    spread_rows(x.data(), spread.data(), shape.rows, shape.k);
  } else {
    weight = exact;
  }
  std::vector<Y> y(static_cast<size_t>(shape.rows * shape.outputs));
  few_rows(spread.data(), weight.data(), y.data(), shape.rows, shape.k, shape.outputs, shape.outputs);
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t output = 0; output < shape.outputs; ++output) {
      const double expected = dot(x, wide, shape, row, output);
      const double bound = std::is_same_v<Y, float> ? 1e-4 : 1e-4 + std::abs(expected) / 256;
      ASSERT_NEAR(to_float(y[static_cast<size_t>(row * shape.outputs + output)]), expected, bound)
          << shape.rows << " x " << shape.k << " -> " << shape.outputs;
    }
  // Alone a row has the same bits.
  std::vector<Y> alone(static_cast<size_t>(shape.outputs));
  const int64_t last = shape.rows - 1;
  few_rows(spread.data() + last * shape.k, weight.data(), alone.data(), 1, shape.k, shape.outputs, shape.outputs);
  for (int64_t output = 0; output < shape.outputs; ++output)
    ASSERT_EQ(to_float(alone[static_cast<size_t>(output)]),
              to_float(y[static_cast<size_t>(last * shape.outputs + output)]));
}

TEST(RawFewRows, EqualTheProductInDoublePrecisionAndThemselvesAlone) {
  for_each_isa([] {
    for (const int64_t rows : kRows)
      for (const int64_t k : kDepths)
        for (const int64_t outputs : kOutputs) {
          ASSERT_NO_FATAL_FAILURE((check_few_rows<float, float>({rows, k, outputs})));
          ASSERT_NO_FATAL_FAILURE((check_few_rows<Bf16, float>({rows, k, outputs})));
          ASSERT_NO_FATAL_FAILURE((check_few_rows<Bf16, Bf16>({rows, k, outputs})));
        }
  });
}

TEST(RawFewRows, OfPairsEqualTheProductInDoublePrecision) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  for (const int64_t rows : kRows)
    for (const int64_t k : kDepths)
      for (const int64_t outputs : kOutputs) {
        const std::vector<Bf16> x = round_all(random_floats(rows * k, 1)),
                                weight = round_all(random_floats(outputs * k, 2));
        std::vector<Bf16> y(static_cast<size_t>(rows * outputs));
        few_rows_of_pairs(x.data(), weight.data(), y.data(), rows, k, outputs, outputs);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t output = 0; output < outputs; ++output) {
            const double expected = dot(widen_all(x), widen_all(weight), {rows, k, outputs}, row, output);
            ASSERT_NEAR(to_float(y[static_cast<size_t>(row * outputs + output)]), expected,
                        1e-3 + std::abs(expected) / 256)
                << rows << " x " << k << " -> " << outputs;
          }
      }
}

}  // namespace
}  // namespace fsdp::kernels::raw
