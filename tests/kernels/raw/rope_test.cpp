#include "kernels/raw/rows/rope.h"

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

struct RopeShape {
  int64_t positions, heads, dim;
};

template <class Check>
void for_each_rope(const Check& check_rope) {
  for (const int64_t positions : {1, 3})
    for (const int64_t heads : {1, 3})
      for (const int64_t dim : {2, 8, 24, 30, 32, 34, 64, 80, 128}) {
        SCOPED_TRACE(std::to_string(positions) + " x " + std::to_string(heads) + " x " + std::to_string(dim));
        ASSERT_NO_FATAL_FAILURE(check_rope(RopeShape{positions, heads, dim}));
      }
}

// Halves of cos and sin differ, more than a rotation's do: so each must be read where it belongs.
template <class T>
struct RopeRows {
  explicit RopeRows(RopeShape shape)
      : shape(shape),
        from_stride(shape.heads * shape.dim + 5),
        to_stride(shape.heads * shape.dim + 3),
        x(random_numbers<T>(shape.positions * from_stride, 1, 2)),
        cos(random_numbers<T>(shape.positions * shape.dim, 2)),
        sin(random_numbers<T>(shape.positions * shape.dim, 3)) {}

  void run(const T* from, T* to, int64_t stride, bool inverse) const {
    rope(RopePositions<T>{from, to, from_stride, stride, cos.data(), sin.data(), shape.positions, shape.heads,
                          shape.dim},
         inverse);
  }

  RopeShape shape;
  int64_t from_stride, to_stride;
  std::vector<T> x, cos, sin;
};

// Element i of one head. Products are exact in double precision, and rounding their sum to fp32 first changes nothing.
template <class T>
double expected_at(const RopeRows<T>& rows, int64_t position, int64_t head, int64_t i, bool inverse) {
  const int64_t dim = rows.shape.dim, half = dim / 2, j = i < half ? i + half : i - half;
  const T* x = rows.x.data() + position * rows.from_stride + head * dim;
  const T *cos = rows.cos.data() + position * dim, *sin = rows.sin.data() + position * dim;
  const auto product = [](T a, T b) { return to_float(rounded<T>(static_cast<double>(to_float(a)) * to_float(b))); };
  const bool is_subtracted = (i < half) != inverse;
  const double crossed = product(x[j], sin[inverse ? j : i]);
  return to_float(rounded<T>(product(x[i], cos[i]) + (is_subtracted ? -crossed : crossed)));
}

template <class T>
void check_rope(RopeShape shape) {
  const RopeRows<T> rows(shape);
  for (const bool inverse : {false, true}) {
    Guarded<T> y(shape.positions * rows.to_stride);
    rows.run(rows.x.data(), y.data(), rows.to_stride, inverse);
    for (int64_t position = 0; position < shape.positions; ++position) {
      int64_t at = position * rows.to_stride;
      for (int64_t head = 0; head < shape.heads; ++head)
        for (int64_t i = 0; i < shape.dim; ++i, ++at)
          ASSERT_EQ(y[at], expected_at(rows, position, head, i, inverse)) << position << ", " << head << ", " << i;
      for (; at < (position + 1) * rows.to_stride; ++at) ASSERT_EQ(y[at], to_float(y.guard()));
    }
    ASSERT_TRUE(y.is_intact());
  }
}

TEST(RawRope, EqualsTheFormulaBitForBit) {
  for_each_isa([] {
    for_each_rope(check_rope<float>);
    for_each_rope(check_rope<Bf16>);
  });
}

template <class T>
void check_in_place(RopeShape shape) {
  const RopeRows<T> rows(shape);
  for (const bool inverse : {false, true}) {
    Guarded<T> apart(rows.x), place(rows.x);
    rows.run(rows.x.data(), apart.data(), rows.from_stride, inverse);
    rows.run(place.data(), place.data(), rows.from_stride, inverse);
    ASSERT_TRUE(place.has_bits_of(apart));
  }
}

TEST(RawRope, WorksInPlace) {
  for_each_isa([] {
    for_each_rope(check_in_place<float>);
    for_each_rope(check_in_place<Bf16>);
  });
}

// <R x, g> = <x, R^T g>.
TEST(RawRope, InverseIsTheTranspose) {
  for_each_isa([] {
    for_each_rope([](RopeShape shape) {
      const RopeRows<float> rows(shape);
      const std::vector<float> g = random_floats(shape.positions * rows.from_stride, 4);
      Guarded<float> y(rows.x), back(g);
      rows.run(rows.x.data(), y.data(), rows.from_stride, false);
      rows.run(g.data(), back.data(), rows.from_stride, true);
      for (int64_t position = 0; position < shape.positions; ++position) {
        double forward = 0, backward = 0, size = 0;
        for (int64_t i = 0; i < shape.heads * shape.dim; ++i) {
          const int64_t at = position * rows.from_stride + i;
          forward += y[at] * g.data()[at];
          backward += back[at] * rows.x.data()[at];
          size += std::abs(y[at] * g.data()[at]);
        }
        ASSERT_NEAR(forward, backward, kFine * size);
      }
    });
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
