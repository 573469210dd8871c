#include "kernels/raw/products/gemm.h"

#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

struct GemmShape {
  int64_t m, n, k;
};

// Strides beyond the matrices: what lies between must stay as it is.
struct Operands {
  explicit Operands(GemmShape shape, bool transposed)
      : a(random_floats((shape.m + 2) * (shape.k + 2), 1)),
        b(random_floats((shape.k + 1) * (shape.n + 16), 2)),
        start(random_floats(shape.m * (shape.n + 5), 3)),
        left{a.data(), transposed ? 1 : shape.k + 2, transposed ? shape.m + 2 : 1},
        b_stride(shape.n + 16),
        c_stride(shape.n + 5) {}

  std::vector<float> a, b, start;
  LeftOperand left;
  int64_t b_stride, c_stride;
};

void expect_product(GemmShape shape, const Operands& x, const std::vector<float>& c, bool add) {
  for (int64_t row = 0; row < shape.m; ++row)
    for (int64_t column = 0; column < x.c_stride; ++column) {
      const auto at = static_cast<size_t>(row * x.c_stride + column);
      double expected = add || column >= shape.n ? x.start[at] : 0;
      for (int64_t i = 0; i < shape.k && column < shape.n; ++i)
        expected += static_cast<double>(x.left.data[row * x.left.row_stride + i * x.left.column_stride]) *
                    x.b[static_cast<size_t>(i * x.b_stride + column)];
      ASSERT_NEAR(c[at], expected, column < shape.n ? 1e-5 : 0)
          << shape.m << " x " << shape.n << " x " << shape.k << " at " << row << ", " << column;
    }
}

TEST(SmallGemm, EqualsTheProductInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t m : {1, 3, 4, 6, 7, 64, 70})
      for (const int64_t n : {16, 32, 48, 64, 80, 128})
        for (const int64_t k : {0, 1, 5, 17, 64})
          for (const bool transposed : {false, true})
            for (const bool add : {false, true}) {
              const GemmShape shape{m, n, k};
              const Operands x(shape, transposed);
              std::vector<float> c = x.start;
              small_gemm(m, n, k, x.left, x.b.data(), x.b_stride, c.data(), x.c_stride, add);
              ASSERT_NO_FATAL_FAILURE(expect_product(shape, x, c, add));
            }
  });
}

// What packed documents and shards rely on.
TEST(SmallGemm, AnElementDependsNeitherOnRowsNorOnColumnsBesideIt) {
  for_each_isa([] {
    const GemmShape shape{70, 144, 33};
    const Operands x(shape, false);
    std::vector<float> all = x.start;
    small_gemm(shape.m, shape.n, shape.k, x.left, x.b.data(), x.b_stride, all.data(), x.c_stride, false);
    for (const int64_t m : {1, 5, 69})
      for (const int64_t n : {16, 112}) {
        std::vector<float> some = x.start;
        small_gemm(m, n, shape.k, x.left, x.b.data(), x.b_stride, some.data(), x.c_stride, false);
        for (int64_t row = 0; row < m; ++row)
          for (int64_t column = 0; column < n; ++column) {
            const auto at = static_cast<size_t>(row * x.c_stride + column);
            ASSERT_EQ(some[at], all[at]) << m << " x " << n;
          }
      }
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
