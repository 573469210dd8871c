#include "kernels/raw/products/dense_gemm.h"

#include <cmath>

#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

struct DenseShape {
  int64_t m, n, k;
};

// Remainders of tiles, panels and blocks, and more than one block of each.
constexpr DenseShape kShapes[] = {{1, 1, 1},     {5, 7, 0},      {5, 7, 3},      {6, 16, 16},   {13, 17, 33},
                                  {97, 65, 257}, {100, 259, 64}, {7, 130, 9000}, {200, 33, 300}};

// Either way a matrix may lie, with room between its rows or columns.
template <class T>
struct Stored {
  Stored(int64_t rows, int64_t columns, bool across, uint32_t seed)
      : row_stride(across ? 1 : columns + 3), column_stride(across ? rows + 5 : 1) {
    const std::vector<float> exact = random_floats((rows + 5) * (columns + 3) + rows * columns, seed);
    for (const float value : exact) values.push_back(from_float<T>(value));
  }
  Operand operand() const { return {values.data(), row_stride, column_stride}; }
  double at(int64_t row, int64_t column) const {
    return to_float(values[static_cast<size_t>(row * row_stride + column * column_stride)]);
  }

  std::vector<T> values;
  int64_t row_stride, column_stride;
};

constexpr float kScale = 0.75f;

template <class A, class B>
double expected_at(const Stored<A>& a, const Stored<B>& b, int64_t k, int64_t row, int64_t column) {
  double total = 0;
  for (int64_t i = 0; i < k; ++i) total += a.at(row, i) * b.at(i, column);
  return kScale * total;
}

std::vector<float> scratch_for(DenseShape shape) {
  return std::vector<float>(static_cast<size_t>(dense_gemm_scratch(shape.n, shape.k)), NAN);
}

template <class A, class B>
void check_fp32(DenseShape shape, bool a_across, bool b_across, bool add) {
  const Stored<A> a(shape.m, shape.k, a_across, 1);
  const Stored<B> b(shape.k, shape.n, b_across, 2);
  const int64_t stride = shape.n + 3;
  const std::vector<float> start = random_floats(shape.m * stride, 3);
  std::vector<float> c = start, scratch = scratch_for(shape);
  dense_gemm(shape.m, shape.n, shape.k, a.operand(), b.operand(), kScale, c.data(), stride, add, scratch.data());
  const double bound = 1e-6 * (5 + static_cast<double>(shape.k));
  for (int64_t row = 0; row < shape.m; ++row)
    for (int64_t column = 0; column < stride; ++column) {
      const auto at = static_cast<size_t>(row * stride + column);
      if (column >= shape.n)
        ASSERT_EQ(c[at], start[at]) << "beyond the columns";
      else
        ASSERT_NEAR(c[at], expected_at(a, b, shape.k, row, column) + (add ? start[at] : 0), bound)
            << shape.m << " x " << shape.n << " x " << shape.k << " at " << row << ", " << column;
    }
}

void check_bf16(DenseShape shape, bool a_across, bool b_across) {
  const Stored<Bf16> a(shape.m, shape.k, a_across, 1), b(shape.k, shape.n, b_across, 2);
  const int64_t stride = shape.n + 3;
  std::vector<Bf16> c(static_cast<size_t>(shape.m * stride), from_float<Bf16>(7));
  std::vector<float> scratch = scratch_for(shape);
  dense_gemm(shape.m, shape.n, shape.k, a.operand(), b.operand(), kScale, c.data(), stride, scratch.data());
  for (int64_t row = 0; row < shape.m; ++row)
    for (int64_t column = 0; column < stride; ++column) {
      const float actual = to_float(c[static_cast<size_t>(row * stride + column)]);
      const double expected = column < shape.n ? expected_at(a, b, shape.k, row, column) : 7;
      const double bound = std::abs(expected) / 256 + 1e-6 * (5 + static_cast<double>(shape.k));
      ASSERT_NEAR(actual, expected, column < shape.n ? bound : 0) << shape.m << " x " << shape.n << " x " << shape.k;
    }
}

TEST(DenseGemm, EqualsTheProductInDoublePrecision) {
  for_each_isa([] {
    for (const DenseShape shape : kShapes)
      for (const bool a_across : {false, true})
        for (const bool b_across : {false, true})
          for (const bool add : {false, true}) {
            ASSERT_NO_FATAL_FAILURE((check_fp32<float, float>(shape, a_across, b_across, add)));
            ASSERT_NO_FATAL_FAILURE((check_fp32<Bf16, Bf16>(shape, a_across, b_across, add)));
          }
  });
}

TEST(DenseGemm, MayMixTypesAndRoundToBf16) {
  for_each_isa([] {
    for (const DenseShape shape : kShapes)
      for (const bool a_across : {false, true})
        for (const bool b_across : {false, true}) {
          ASSERT_NO_FATAL_FAILURE((check_fp32<float, Bf16>(shape, a_across, b_across, false)));
          ASSERT_NO_FATAL_FAILURE(check_bf16(shape, a_across, b_across));
        }
  });
}

// Of a vocabulary, say: numbers of one sign, where each addition to a sum that has grown large would cost a digit.
TEST(DenseGemm, ALongSumKeepsItsDigits) {
  for_each_isa([] {
    constexpr int64_t kDepth = 1 << 17, kColumns = 5;
    const std::vector<float> ones(kDepth, 1), numbers = random_floats(kDepth * kColumns, 4);
    std::vector<float> b, c(kColumns), scratch = scratch_for({1, kColumns, kDepth});
    for (const float number : numbers) b.push_back(std::abs(number));
    dense_gemm(1, kColumns, kDepth, {ones.data(), kDepth, 1}, {b.data(), kColumns, 1}, 1, c.data(), kColumns, false,
               scratch.data());
    for (size_t column = 0; column < c.size(); ++column) {
      double expected = 0;
      for (size_t i = column; i < b.size(); i += c.size()) expected += b[i];
      EXPECT_NEAR(c[column] / expected, 1, 2e-6);
    }
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
