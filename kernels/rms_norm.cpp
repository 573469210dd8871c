#include "kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/dispatch.h"
#include "kernels/input_checks.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

template <class T>
FSDP_ALWAYS_INLINE void add_row(const T* a, const T* b, T* sum, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) simd::store(sum + i, simd::load(a + i) + simd::load(b + i));
  for (; i < width; ++i) sum[i] = static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

// What is normalised are rows of x, or with a residual those of their sum, which is written then.
template <class T>
struct ForwardRows {
  const T *x, *residual, *weight;
  T *sum, *y;
  float* rstd;
  int64_t width;
  float eps;

  ForwardRows from(int64_t row) const {
    const int64_t offset = row * width;
    return {x + offset, residual ? residual + offset : nullptr,
            weight,     residual ? sum + offset : nullptr,
            y + offset, rstd + row,
            width,      eps};
  }
};

template <class T>
FSDP_ALWAYS_INLINE void forward_rows_of(const ForwardRows<T>& a, int64_t rows) {
  const int64_t width = a.width, whole = width - width % kLanes, rest = width - whole;
  const T* weight = a.weight;
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = a.x + row * width;
    T* y = a.y + row * width;
    if (a.residual) {
      add_row(x, a.residual + row * width, a.sum + row * width, width);
      x = a.sum + row * width;
    }
    Float squares = {}, more = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
      const Float a = simd::load(x + i), b = simd::load(x + i + kLanes);
      squares += a * a;
      more += b * b;
    }
    for (; i < whole; i += kLanes) squares += simd::load(x + i) * simd::load(x + i);
    const Float tail = simd::load_first(x + whole, rest);
    const float mean = simd::sum(squares + more + tail * tail) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + a.eps);
    a.rstd[row] = scale;
    for (i = 0; i < whole; i += kLanes)
      simd::store(y + i, simd::round_to<T>(simd::load(x + i) * scale) * simd::load(weight + i));
    if (rest)
      simd::store_first(y + whole, simd::round_to<T>(tail * scale) * simd::load_first(weight + whole, rest), rest);
  }
}

// x is what was normalised. With grad_sum, its gradient from elsewhere, that is added.
template <class T>
struct BackwardRows {
  const T *grad_y, *grad_sum, *x, *weight;
  const float* rstd;
  T* grad_x;
  float* grad_weight;
  int64_t width;
};

// dx = rstd * (g - n * mean(g * n)) with g = dy * weight and n = x * rstd; adds dy * n to grad_weight [width].
template <class T>
FSDP_ALWAYS_INLINE void backward_rows_of(const BackwardRows<T>& a, int64_t rows) {
  const int64_t width = a.width, whole = width - width % kLanes, rest = width - whole;
  const T* weight = a.weight;
  float* grad_weight = a.grad_weight;
  for (int64_t row = 0; row < rows; ++row) {
    const T *grad_y = a.grad_y + row * width, *x = a.x + row * width;
    T* grad_x = a.grad_x + row * width;
    const float scale = a.rstd[row];
    Float dot = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Float gy = simd::load(grad_y + i), n = simd::load(x + i) * scale;
      dot += gy * simd::load(weight + i) * n;
      simd::store(grad_weight + i, simd::load(grad_weight + i) + gy * simd::round_to<T>(n));
    }
    const Float gy_tail = simd::load_first(grad_y + whole, rest), n_tail = simd::load_first(x + whole, rest) * scale;
    const Float g_tail = gy_tail * simd::load_first(weight + whole, rest);
    const float mean = simd::sum(dot + g_tail * n_tail) / static_cast<float>(width);
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Float g = simd::load(grad_y + i) * simd::load(weight + i), n = simd::load(x + i) * scale;
      simd::store(grad_x + i, (g - n * mean) * scale);
    }
    if (rest) {
      const Float total = simd::load_first(grad_weight + whole, rest) + gy_tail * simd::round_to<T>(n_tail);
      simd::store_first(grad_weight + whole, total, rest);
      simd::store_first(grad_x + whole, (g_tail - n_tail * mean) * scale, rest);
    }
    if (a.grad_sum) add_row(grad_x, a.grad_sum + row * width, grad_x, width);
  }
}

FSDP_SIMD_CLONES void forward_rows(const ForwardRows<float>& a, int64_t rows) { forward_rows_of(a, rows); }

FSDP_SIMD_CLONES void forward_rows(const ForwardRows<at::BFloat16>& a, int64_t rows) { forward_rows_of(a, rows); }

FSDP_SIMD_CLONES void backward_rows(const BackwardRows<float>& a, int64_t rows) { backward_rows_of(a, rows); }

FSDP_SIMD_CLONES void backward_rows(const BackwardRows<at::BFloat16>& a, int64_t rows) { backward_rows_of(a, rows); }

int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

// {sum, y, rstd}; without a residual sum is undefined.
std::tuple<at::Tensor, at::Tensor, at::Tensor> run_forward(const at::Tensor& x, const at::Tensor& residual,
                                                           const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  const at::Tensor input = x.contiguous(), scale = weight.contiguous();
  const at::Tensor other = residual.defined() ? residual.contiguous() : residual;
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor sum, y = at::empty(input.sizes(), input.options());
  if (other.defined()) sum = at::empty(input.sizes(), input.options());
  at::Tensor rstd = at::empty({rows}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm", x, [&](auto zero) {
    using T = decltype(zero);
    const ForwardRows<T> all{input.const_data_ptr<T>(),
                             other.defined() ? other.const_data_ptr<T>() : nullptr,
                             scale.const_data_ptr<T>(),
                             sum.defined() ? sum.mutable_data_ptr<T>() : nullptr,
                             y.mutable_data_ptr<T>(),
                             rstd.mutable_data_ptr<float>(),
                             width,
                             static_cast<float>(eps)};
    parallel_for(0, rows, rows_per_task(width),
                 [&](int64_t begin, int64_t end) { forward_rows(all.from(begin), end - begin); });
  });
  return {sum, y, rstd};
}

// Rows are cut into at most 32 pieces whatever the number of threads, each with its own sum for the weight's gradient:
// the result does not depend on the number of threads. `grad_sum` may be undefined.
std::tuple<at::Tensor, at::Tensor> run_backward(const at::Tensor& grad_y, const at::Tensor& grad_sum,
                                                const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  check_rms_norm(x, weight);
  const at::Tensor grad = grad_y.contiguous(), input = x.contiguous(), scale = weight.contiguous();
  const at::Tensor more = grad_sum.defined() ? grad_sum.contiguous() : grad_sum;
  const int64_t width = x.size(-1), rows = rstd.numel();
  const int64_t piece = std::max<int64_t>(16, (rows + 31) / 32), pieces = (rows + piece - 1) / piece;
  at::Tensor grad_x = at::empty(input.sizes(), input.options());
  at::Tensor partial = at::zeros({pieces, width}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm_backward", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i * piece, offset = row * width;
        backward_rows(BackwardRows<T>{grad.const_data_ptr<T>() + offset,
                                      more.defined() ? more.const_data_ptr<T>() + offset : nullptr,
                                      input.const_data_ptr<T>() + offset, scale.const_data_ptr<T>(),
                                      rstd.const_data_ptr<float>() + row, grad_x.mutable_data_ptr<T>() + offset,
                                      partial.mutable_data_ptr<float>() + i * width, width},
                      std::min(piece, rows - row));
      }
    });
  });
  return {grad_x, partial.sum(0).to(weight.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = run_forward(x, {}, weight, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& weight,
                                                const at::Tensor& rstd) {
  return run_backward(grad_y, {}, x, weight, rstd);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_forward_cpu(const at::Tensor& x, const at::Tensor& residual,
                                                               const at::Tensor& weight, double eps) {
  check_residual(x, residual);
  return run_forward(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_backward_cpu(const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_sum,
                                                    const at::Tensor& sum, const at::Tensor& weight,
                                                    const at::Tensor& rstd) {
  return run_backward(grad_y, grad_sum.value_or(at::Tensor()), sum, weight, rstd);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    static const auto op =
        find_operator<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double)>(
            "fsdp::rms_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    auto [y, rstd] = op.call(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>("fsdp::rms_norm_backward");
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] = op.call(grads[0], saved[0], saved[1], saved[2]);
    return {grad_x, grad_weight, at::Tensor()};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& residual, const at::Tensor& weight, double eps) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("fsdp::add_rms_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    auto [sum, y, rstd] = op.call(x, residual, weight, eps);
    context->save_for_backward({sum, weight, rstd});
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
        "fsdp::add_rms_norm_backward");
    if (!grads[1].defined()) return {grads[0], grads[0], at::Tensor(), at::Tensor()};
    const auto saved = context->get_saved_variables();
    const auto grad_sum = grads[0].defined() ? std::optional(grads[0]) : std::nullopt;
    auto [grad, grad_weight] = op.call(grads[1], grad_sum, saved[0], saved[1], saved[2]);
    return {grad, grad, grad_weight, at::Tensor()};
  }
};

at::Tensor without_gradient(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(forward_cpu(x, weight, eps));
}

at::Tensor differentiable(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_without_gradient(const at::Tensor& x, const at::Tensor& residual,
                                                        const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = add_forward_cpu(x, residual, weight, eps);
  return {sum, y};
}

std::tuple<at::Tensor, at::Tensor> add_differentiable(const at::Tensor& x, const at::Tensor& residual,
                                                      const at::Tensor& weight, double eps) {
  const auto results = AddRmsNorm::apply(x, residual, weight, eps);
  return {results[0], results[1]};
}

}  // namespace

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
              "[rms_norm] x [..., H] and weight [H] needed: got x ", x.sizes(), " and weight ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "[rms_norm] x is ", x.scalar_type(), " and weight is ",
              weight.scalar_type(), ": cast one of them");
}

void check_residual(const at::Tensor& x, const at::Tensor& residual) {
  TORCH_CHECK(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type(), "[add_rms_norm] got x ",
              x.sizes(), " ", x.scalar_type(), " and a residual ", residual.sizes(), " ", residual.scalar_type(),
              ", expected the same of both");
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("fsdp::rms_norm");
  return op.call(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps) {
  static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("fsdp::add_rms_norm");
  auto [sum, y] = op.call(x, residual, weight, eps);
  return {sum, y};
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)");
  library.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("add_rms_norm_forward(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)");
  library.def(
      "add_rms_norm_backward(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor weight, Tensor rstd) -> (Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("rms_norm", without_gradient);
  library.impl("rms_norm_forward", forward_cpu);
  library.impl("rms_norm_backward", backward_cpu);
  library.impl("add_rms_norm", add_without_gradient);
  library.impl("add_rms_norm_forward", add_forward_cpu);
  library.impl("add_rms_norm_backward", add_backward_cpu);
}

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("rms_norm", differentiable);
  library.impl("add_rms_norm", add_differentiable);
}

}  // namespace fsdp::kernels
