#include "kernels/raw/products/pair_gemm.h"

#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

float at(const std::vector<Bf16>& values, int64_t place) { return to_float(values[static_cast<size_t>(place)]); }

// b [2 pairs, n] -> [pairs, n] pairs along the rows.
std::vector<Bf16Pair> pair_rows(const std::vector<Bf16>& b, int64_t pairs, int64_t n) {
  std::vector<Bf16Pair> paired(static_cast<size_t>(pairs * n));
  for (int64_t i = 0; i < pairs; ++i)
    for (int64_t column = 0; column < n; ++column)
      paired[static_cast<size_t>(i * n + column)] =
          b[static_cast<size_t>(2 * i * n + column)].bits |
          static_cast<Bf16Pair>(b[static_cast<size_t>((2 * i + 1) * n + column)].bits) << 16;
  return paired;
}

struct Case {
  int64_t m, n, pairs;
  bool transposed, add;
};

void check_pairs(const Case& x, decltype(&pair_gemm) multiply) {
  const std::vector<Bf16> a = round_all(random_floats(x.m * 2 * x.pairs, 1)),
                          b = round_all(random_floats(2 * x.pairs * x.n, 2));
  std::vector<Bf16Pair> left(static_cast<size_t>(x.m * x.pairs));
  for (int64_t row = 0; row < x.m; ++row)
    for (int64_t i = 0; i < x.pairs; ++i) {
      const auto from = static_cast<size_t>(row * 2 * x.pairs + 2 * i);
      left[static_cast<size_t>(x.transposed ? i * x.m + row : row * x.pairs + i)] =
          a[from].bits | static_cast<Bf16Pair>(a[from + 1].bits) << 16;
    }
  const std::vector<Bf16Pair> right = pair_rows(b, x.pairs, x.n);
  const int64_t stride = x.n + 16;
  const std::vector<float> start = random_floats(x.m * stride, 3);
  std::vector<float> c = start;
  const PairedOperand operand =
      x.transposed ? PairedOperand{left.data(), 1, x.m} : PairedOperand{left.data(), x.pairs, 1};
  multiply(x.m, x.n, x.pairs, operand, right.data(), x.n, c.data(), stride, x.add);
  for (int64_t row = 0; row < x.m; ++row)
    for (int64_t column = 0; column < stride; ++column) {
      const auto place = static_cast<size_t>(row * stride + column);
      double expected = x.add || column >= x.n ? start[place] : 0;
      for (int64_t i = 0; i < 2 * x.pairs && column < x.n; ++i)
        expected += static_cast<double>(at(a, row * 2 * x.pairs + i)) * at(b, i * x.n + column);
      ASSERT_NEAR(c[place], expected, column < x.n ? 1e-4 : 0) << x.m << " x " << x.n << " x " << x.pairs;
    }
}

TEST(PairGemm, EqualsTheProductInDoublePrecision) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  for (const int64_t m : {1, 2, 5, 6, 7, 16, 35, 64})
    for (const int64_t n : {16, 48, 64, 80, 128})
      for (const int64_t pairs : {0, 1, 8, 16, 33, 48})
        for (const bool transposed : {false, true})
          for (const bool add : {false, true}) {
            ASSERT_NO_FATAL_FAILURE(check_pairs({m, n, pairs, transposed, add}, pair_gemm));
            ASSERT_NO_FATAL_FAILURE(check_pairs({m, n, pairs, transposed, add}, pair_gemm_in_vectors));
          }
}

TEST(PairGemm, IsThereInTheBestSetAlone) {
  for_each_isa([] { EXPECT_TRUE(cpu_isa() == CpuIsa::kAvx512 || !has_pair_gemm()); });
}

}  // namespace
}  // namespace fsdp::kernels::raw
