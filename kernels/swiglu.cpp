#include "kernels/swiglu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "kernels/dense_rows.h"
#include "kernels/dispatch.h"
#include "kernels/input_checks.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

constexpr int64_t kGrain = 8192;

FSDP_ALWAYS_INLINE Float sigmoid(Float x) { return 1.0f / (1.0f + simd::exp(-x)); }

template <class T>
FSDP_ALWAYS_INLINE void forward_range_of(const T* gate, const T* up, T* y, int64_t count) {
  const int64_t whole = count - count % kLanes, rest = count - whole;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Float g = simd::load(gate + i);
    simd::store(y + i, simd::round_to<T>(g * sigmoid(g)) * simd::load(up + i));
  }
  if (rest == 0) return;
  const Float g = simd::load_first(gate + whole, rest);
  simd::store_first(y + whole, simd::round_to<T>(g * sigmoid(g)) * simd::load_first(up + whole, rest), rest);
}

// silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g).
template <class T>
FSDP_ALWAYS_INLINE void gradients(Float grad_y, Float g, Float u, Float& grad_gate, Float& grad_up) {
  const Float s = sigmoid(g);
  grad_gate = simd::round_to<T>(grad_y * u) * s * (1.0f + g * (1.0f - s));
  grad_up = grad_y * simd::round_to<T>(g * s);
}

template <class T>
FSDP_ALWAYS_INLINE void backward_range_of(const T* grad_y, const T* gate, const T* up, T* grad_gate, T* grad_up,
                                          int64_t count) {
  const int64_t whole = count - count % kLanes, rest = count - whole;
  Float for_gate, for_up;
  for (int64_t i = 0; i < whole; i += kLanes) {
    gradients<T>(simd::load(grad_y + i), simd::load(gate + i), simd::load(up + i), for_gate, for_up);
    simd::store(grad_gate + i, for_gate);
    simd::store(grad_up + i, for_up);
  }
  if (rest == 0) return;
  gradients<T>(simd::load_first(grad_y + whole, rest), simd::load_first(gate + whole, rest),
               simd::load_first(up + whole, rest), for_gate, for_up);
  simd::store_first(grad_gate + whole, for_gate, rest);
  simd::store_first(grad_up + whole, for_up, rest);
}

FSDP_SIMD_CLONES void forward_range(const float* gate, const float* up, float* y, int64_t count) {
  forward_range_of(gate, up, y, count);
}

FSDP_SIMD_CLONES void forward_range(const at::BFloat16* gate, const at::BFloat16* up, at::BFloat16* y, int64_t count) {
  forward_range_of(gate, up, y, count);
}

FSDP_SIMD_CLONES void backward_range(const float* grad_y, const float* gate, const float* up, float* grad_gate,
                                     float* grad_up, int64_t count) {
  backward_range_of(grad_y, gate, up, grad_gate, grad_up, count);
}

FSDP_SIMD_CLONES void backward_range(const at::BFloat16* grad_y, const at::BFloat16* gate, const at::BFloat16* up,
                                     at::BFloat16* grad_gate, at::BFloat16* grad_up, int64_t count) {
  backward_range_of(grad_y, gate, up, grad_gate, grad_up, count);
}

// Calls body(row, first, count) for pieces of rows that cover all elements, on all threads.
template <class Body>
void for_each_piece(Rows rows, const Body& body) {
  parallel_for(0, rows.count * rows.width, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / rows.width, first = begin % rows.width;
      const int64_t count = std::min(end - begin, rows.width - first);
      body(row, first, count);
      begin += count;
    }
  });
}

at::Tensor forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  const at::Tensor g = with_dense_rows(gate), u = with_dense_rows(up);
  at::Tensor y = at::empty(g.sizes(), g.options());
  const Rows rows = rows_of({g, u});
  const int64_t g_stride = row_stride(g, rows), u_stride = row_stride(u, rows);
  dispatch_dtype("swiglu", g, [&](auto zero) {
    using T = decltype(zero);
    const T *from_gate = g.const_data_ptr<T>(), *from_up = u.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    for_each_piece(rows, [&](int64_t row, int64_t first, int64_t count) {
      forward_range(from_gate + row * g_stride + first, from_up + row * u_stride + first, to + row * rows.width + first,
                    count);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad_y, const at::Tensor& gate,
                                                const at::Tensor& up) {
  check_swiglu(gate, up);
  const at::Tensor grad = grad_y.contiguous(), g = with_dense_rows(gate), u = with_dense_rows(up);
  auto [grad_gate, grad_up] = empty_beside_each_other(g, u);
  const Rows rows = rows_of({g, u, grad_gate, grad_up});
  const int64_t g_stride = row_stride(g, rows), u_stride = row_stride(u, rows);
  const int64_t to_stride = row_stride(grad_gate, rows);
  dispatch_dtype("swiglu_backward", g, [&](auto zero) {
    using T = decltype(zero);
    const T *from = grad.const_data_ptr<T>(), *from_gate = g.const_data_ptr<T>(), *from_up = u.const_data_ptr<T>();
    T *to_gate = grad_gate.mutable_data_ptr<T>(), *to_up = grad_up.mutable_data_ptr<T>();
    for_each_piece(rows, [&](int64_t row, int64_t first, int64_t count) {
      const int64_t to = row * to_stride + first;
      backward_range(from + row * rows.width + first, from_gate + row * g_stride + first,
                     from_up + row * u_stride + first, to_gate + to, to_up + to, count);
    });
  });
  return {grad_gate, grad_up};
}

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::swiglu_forward");
    context->save_for_backward({gate, up});
    return op.call(gate, up);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op =
        find_operator<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
            "fsdp::swiglu_backward");
    const auto saved = context->get_saved_variables();
    auto [grad_gate, grad_up] = op.call(grads[0], saved[0], saved[1]);
    return {grad_gate, grad_up};
  }
};

}  // namespace

void check_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  TORCH_CHECK(gate.sizes() == up.sizes(), "[swiglu] gate and up need one shape: got ", gate.sizes(), " and ",
              up.sizes());
  TORCH_CHECK(gate.scalar_type() == up.scalar_type(), "[swiglu] gate is ", gate.scalar_type(), " and up is ",
              up.scalar_type(), ": cast one of them");
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return SwiGlu::apply(gate, up); }

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("swiglu_forward(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("swiglu_forward", forward_cpu);
  library.impl("swiglu_backward", backward_cpu);
}

}  // namespace fsdp::kernels
