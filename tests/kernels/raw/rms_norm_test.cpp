#include "kernels/raw/rows/rms_norm.h"

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

struct NormShape {
  int64_t rows, width;
  bool with_second;  // the residual, or a gradient of the sum
};

constexpr float kNormEps = 1e-3f;

template <class Check>
void for_each_norm(const Check& check) {
  for (const int64_t rows : {1, 3})
    for (const int64_t width : {1, 15, 16, 17, 32, 33, 48, 64, 80, 576})
      for (const bool with_second : {false, true}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + (with_second ? " with a second" : ""));
        ASSERT_NO_FATAL_FAILURE(check(NormShape{rows, width, with_second}));
      }
}

template <class T>
double rstd_of(const T* x, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(to_float(x[i])) * to_float(x[i]);
  return 1 / std::sqrt(squares / static_cast<double>(width) + kNormEps);
}

template <class T>
struct Forward {
  explicit Forward(NormShape shape)
      : shape(shape),
        x(random_numbers<T>(shape.rows * shape.width, 1, 3)),
        residual(random_numbers<T>(shape.rows * shape.width, 2)),
        weight(random_numbers<T>(shape.width, 3)),
        sum(shape.rows * shape.width),
        y(shape.rows * shape.width),
        rstd(shape.rows) {}

  void run(int64_t row, int64_t rows) {
    const int64_t at = row * shape.width;
    T* to_sum = shape.with_second ? sum.data() + at : nullptr;
    rms_norm(RmsNormForward<T>{x.data() + at, shape.with_second ? residual.data() + at : nullptr, weight.data(), to_sum,
                               y.data() + at, rstd.data() + row, rows, shape.width, kNormEps});
  }

  NormShape shape;
  std::vector<T> x, residual, weight;
  Guarded<T> sum, y;
  Guarded<float> rstd;
};

template <class T>
void check_norm_forward(NormShape shape) {
  Forward<T> of(shape);
  of.run(0, shape.rows);
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::vector<T> x;
    for (int64_t at = row * shape.width; at < (row + 1) * shape.width; ++at) {
      const double second = shape.with_second ? to_float(of.residual.data()[at]) : 0;
      x.push_back(rounded<T>(to_float(of.x.data()[at]) + second));
      ASSERT_EQ(of.sum[at], to_float(shape.with_second ? x.back() : of.sum.guard()));
    }
    const double rstd = rstd_of(x.data(), shape.width);
    ASSERT_NEAR(of.rstd[row], rstd, kFine * rstd);
    for (int64_t i = 0; i < shape.width; ++i) {
      const double expected = to_float(x.data()[i]) * rstd * to_float(of.weight.data()[i]);
      // What is normalised is rounded before the weight is applied, and after it.
      ASSERT_NEAR(of.y[row * shape.width + i], expected, std::abs(expected) * (kFine + 2 * kRounding<T>));
    }
  }
  ASSERT_TRUE(of.sum.is_intact() && of.y.is_intact() && of.rstd.is_intact());
}

TEST(RawRmsNorm, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for_each_norm(check_norm_forward<float>);
    for_each_norm(check_norm_forward<Bf16>);
  });
}

template <class T>
struct Backward {
  explicit Backward(NormShape shape)
      : shape(shape),
        grad_y(random_numbers<T>(shape.rows * shape.width, 1)),
        grad_sum(random_numbers<T>(shape.rows * shape.width, 2)),
        x(random_numbers<T>(shape.rows * shape.width, 3, 3)),
        weight(random_numbers<T>(shape.width, 4)),
        start(random_floats(shape.width, 5)),
        grad_x(shape.rows * shape.width),
        grad_weight(start) {
    for (int64_t row = 0; row < shape.rows; ++row)
      rstd.push_back(static_cast<float>(rstd_of(x.data() + row * shape.width, shape.width)));
  }

  void run(int64_t row, int64_t rows) {
    const int64_t at = row * shape.width;
    rms_norm_backward(RmsNormBackward<T>{grad_y.data() + at, shape.with_second ? grad_sum.data() + at : nullptr,
                                         x.data() + at, weight.data(), rstd.data() + row, grad_x.data() + at,
                                         grad_weight.data(), rows, shape.width});
  }

  NormShape shape;
  std::vector<T> grad_y, grad_sum, x, weight;
  std::vector<float> start, rstd;
  Guarded<T> grad_x;
  Guarded<float> grad_weight;
};

// With y_i = w_i x_i r and r = (mean of x^2 + eps)^(-1/2): dr / dx_j = -r^3 x_j / width.
template <class T>
void expect_gradient_of_row(const Backward<T>& of, int64_t row) {
  const int64_t width = of.shape.width;
  const T *x = of.x.data() + row * width, *grad_y = of.grad_y.data() + row * width;
  const double r = rstd_of(x, width);
  double through_r = 0, size_through_r = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double term = static_cast<double>(to_float(grad_y[i])) * to_float(of.weight.data()[i]) * to_float(x[i]);
    through_r += term;
    size_through_r += std::abs(term);
  }
  for (int64_t j = 0; j < width; ++j) {
    const double direct = to_float(grad_y[j]) * to_float(of.weight.data()[j]) * r;
    const double slope = -r * r * r * to_float(x[j]) / static_cast<double>(width);
    const double second = of.shape.with_second ? to_float(of.grad_sum.data()[row * width + j]) : 0;
    const double alone = direct + slope * through_r, expected = alone + second;
    const double size = std::abs(direct) + std::abs(slope) * size_through_r + std::abs(second);
    // Rounded before the second gradient is added, and after it.
    ASSERT_NEAR(of.grad_x[row * width + j], expected,
                kFine * size + kRounding<T> * (std::abs(alone) + std::abs(expected)));
  }
}

template <class T>
void check_norm_backward(NormShape shape) {
  Backward<T> of(shape);
  of.run(0, shape.rows);
  for (int64_t row = 0; row < shape.rows; ++row) ASSERT_NO_FATAL_FAILURE(expect_gradient_of_row(of, row));
  for (int64_t i = 0; i < shape.width; ++i) {
    double expected = of.start.data()[i], size = std::abs(expected), of_rows = 0;
    for (int64_t row = 0; row < shape.rows; ++row) {
      const double r = rstd_of(of.x.data() + row * shape.width, shape.width);
      const int64_t at = row * shape.width + i;
      const double term = to_float(of.grad_y.data()[at]) * (to_float(of.x.data()[at]) * r);
      expected += term;
      of_rows += std::abs(term);
    }
    // What was normalised counts as the forward rounded it.
    ASSERT_NEAR(of.grad_weight[i], expected, kFine * (size + of_rows) + kRounding<T> * of_rows);
  }
  ASSERT_TRUE(of.grad_x.is_intact() && of.grad_weight.is_intact());
}

TEST(RawRmsNorm, GradientsEqualTheAnalyticOnes) {
  for_each_isa([] {
    for_each_norm(check_norm_backward<float>);
    for_each_norm(check_norm_backward<Bf16>);
  });
}

template <class T>
void check_rows_alone(NormShape shape) {
  Forward<T> together(shape), alone(shape);
  Backward<T> gradients_together(shape), gradients_alone(shape);
  together.run(0, shape.rows);
  gradients_together.run(0, shape.rows);
  for (int64_t row = 0; row < shape.rows; ++row) {
    alone.run(row, 1);
    gradients_alone.run(row, 1);
  }
  ASSERT_TRUE(alone.y.has_bits_of(together.y) && alone.rstd.has_bits_of(together.rstd));
  ASSERT_TRUE(gradients_alone.grad_x.has_bits_of(gradients_together.grad_x));
}

TEST(RawRmsNorm, ARowDoesNotDependOnThoseBesideIt) {
  for_each_isa([] {
    for_each_norm(check_rows_alone<float>);
    for_each_norm(check_rows_alone<Bf16>);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
