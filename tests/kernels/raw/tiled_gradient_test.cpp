#include "kernels/raw/products/tiled_gradient.h"

#include <cmath>

#include "kernels/raw/products/amx.h"
#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

struct Shape {
  int64_t m, n, depth;
};

constexpr float kScale = 0.75f;

// Rows of `columns` numbers with room between them.
struct Rows {
  Rows(int64_t rows, int64_t columns, uint32_t seed)
      : stride(columns + 3), values(round_all(random_floats(rows * stride, seed))) {}
  double at(int64_t row, int64_t column) const { return to_float(values[static_cast<size_t>(row * stride + column)]); }

  int64_t stride;
  std::vector<Bf16> values;
};

void check(Shape shape, bool add) {
  const Rows a(shape.depth, shape.m, 1), b(shape.depth, shape.n, 2);
  const int64_t stride = shape.n + 3;
  const std::vector<float> start = random_floats(shape.m * stride, 3);
  std::vector<float> c = start, scratch(static_cast<size_t>(tiled_gradient_scratch(shape.n)), NAN);
  tiled_gradient(shape.m, shape.n, shape.depth, a.values.data(), a.stride, b.values.data(), b.stride, kScale, c.data(),
                 stride, add, scratch.data());
  for (int64_t row = 0; row < shape.m; ++row)
    for (int64_t column = 0; column < stride; ++column) {
      const auto place = static_cast<size_t>(row * stride + column);
      double expected = column < shape.n && !add ? 0 : start[place];
      for (int64_t i = 0; i < shape.depth && column < shape.n; ++i) expected += kScale * a.at(i, row) * b.at(i, column);
      const double bound = 1e-6 * (5 + static_cast<double>(shape.depth));
      ASSERT_NEAR(c[place], expected, column < shape.n ? bound : 0)
          << shape.m << " x " << shape.n << " over " << shape.depth << " at " << row << ", " << column;
    }
}

TEST(TiledGradient, EqualsTheProductInDoublePrecision) {
  if (!amx::is_available()) GTEST_SKIP() << "this processor has no tiles";
  // Remainders of tiles, of pairs and of blocks, and more than one block of each.
  for (const Shape shape :
       {Shape{1, 1, 1}, {5, 7, 2}, {16, 16, 32}, {17, 33, 31}, {70, 130, 65}, {20, 300, 1024}, {130, 40, 2051}})
    for (const bool add : {false, true}) ASSERT_NO_FATAL_FAILURE(check(shape, add));
}

}  // namespace
}  // namespace fsdp::kernels::raw
