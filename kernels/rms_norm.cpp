#include "kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
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
FSDP_ALWAYS_INLINE void forward_rows_of(const T* x, const T* weight, T* y, float* rstd, int64_t rows, int64_t width,
                                        float eps) {
  const int64_t whole = width - width % kLanes, rest = width - whole;
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
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
    const float scale = 1.0f / std::sqrt(mean + eps);
    rstd[row] = scale;
    for (i = 0; i < whole; i += kLanes)
      simd::store(y + i, simd::round_to<T>(simd::load(x + i) * scale) * simd::load(weight + i));
    if (rest)
      simd::store_first(y + whole, simd::round_to<T>(tail * scale) * simd::load_first(weight + whole, rest), rest);
  }
}

// dx = rstd * (g - n * mean(g * n)) with g = dy * weight and n = x * rstd; adds dy * n to grad_weight [width].
template <class T>
FSDP_ALWAYS_INLINE void backward_rows_of(const T* grad_y, const T* x, const T* weight, const float* rstd, T* grad_x,
                                         float* grad_weight, int64_t rows, int64_t width) {
  const int64_t whole = width - width % kLanes, rest = width - whole;
  for (int64_t row = 0; row < rows; ++row, grad_y += width, x += width, grad_x += width) {
    const float scale = rstd[row];
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
  }
}

FSDP_SIMD_CLONES void forward_rows(const float* x, const float* weight, float* y, float* rstd, int64_t rows,
                                   int64_t width, float eps) {
  forward_rows_of(x, weight, y, rstd, rows, width, eps);
}

FSDP_SIMD_CLONES void forward_rows(const at::BFloat16* x, const at::BFloat16* weight, at::BFloat16* y, float* rstd,
                                   int64_t rows, int64_t width, float eps) {
  forward_rows_of(x, weight, y, rstd, rows, width, eps);
}

FSDP_SIMD_CLONES void backward_rows(const float* grad_y, const float* x, const float* weight, const float* rstd,
                                    float* grad_x, float* grad_weight, int64_t rows, int64_t width) {
  backward_rows_of(grad_y, x, weight, rstd, grad_x, grad_weight, rows, width);
}

FSDP_SIMD_CLONES void backward_rows(const at::BFloat16* grad_y, const at::BFloat16* x, const at::BFloat16* weight,
                                    const float* rstd, at::BFloat16* grad_x, float* grad_weight, int64_t rows,
                                    int64_t width) {
  backward_rows_of(grad_y, x, weight, rstd, grad_x, grad_weight, rows, width);
}

int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  const at::Tensor input = x.contiguous(), scale = weight.contiguous();
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor y = at::empty(input.sizes(), input.options());
  at::Tensor rstd = at::empty({rows}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, rows, rows_per_task(width), [&](int64_t begin, int64_t end) {
      forward_rows(input.const_data_ptr<T>() + begin * width, scale.const_data_ptr<T>(),
                   y.mutable_data_ptr<T>() + begin * width, rstd.mutable_data_ptr<float>() + begin, end - begin, width,
                   static_cast<float>(eps));
    });
  });
  return {y, rstd};
}

// Rows are cut into at most 32 pieces whatever the number of threads, each with its own sum for the weight's gradient:
// the result does not depend on the number of threads.
std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& weight,
                                                const at::Tensor& rstd) {
  check_rms_norm(x, weight);
  const at::Tensor grad = grad_y.contiguous(), input = x.contiguous(), scale = weight.contiguous();
  const int64_t width = x.size(-1), rows = rstd.numel();
  const int64_t piece = std::max<int64_t>(16, (rows + 31) / 32), pieces = (rows + piece - 1) / piece;
  at::Tensor grad_x = at::empty(input.sizes(), input.options());
  at::Tensor partial = at::zeros({pieces, width}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm_backward", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i * piece;
        backward_rows(grad.const_data_ptr<T>() + row * width, input.const_data_ptr<T>() + row * width,
                      scale.const_data_ptr<T>(), rstd.const_data_ptr<float>() + row,
                      grad_x.mutable_data_ptr<T>() + row * width, partial.mutable_data_ptr<float>() + i * width,
                      std::min(piece, rows - row), width);
      }
    });
  });
  return {grad_x, partial.sum(0).to(weight.scalar_type())};
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

at::Tensor without_gradient(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(forward_cpu(x, weight, eps));
}

at::Tensor differentiable(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

}  // namespace

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
              "[rms_norm] x [..., H] and weight [H] needed: got x ", x.sizes(), " and weight ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "[rms_norm] x is ", x.scalar_type(), " and weight is ",
              weight.scalar_type(), ": cast one of them");
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("fsdp::rms_norm");
  return op.call(x, weight, eps);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("rms_norm", without_gradient);
  library.impl("rms_norm_forward", forward_cpu);
  library.impl("rms_norm_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) { library.impl("rms_norm", differentiable); }

}  // namespace fsdp::kernels
