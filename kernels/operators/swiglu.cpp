#include "kernels/operators/swiglu.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "kernels/base/dense_rows.h"
#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/raw/rows/swiglu.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kGrain = 8192;

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

at::Tensor swiglu_forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  if (is_half_on_cpu(gate)) return narrowed(swiglu_forward_cpu(widened(gate), widened(up)));
  const at::Tensor g = with_dense_rows(gate), u = with_dense_rows(up);
  at::Tensor y = at::empty(g.sizes(), g.options());
  const Rows rows = rows_of({g, u});
  const int64_t g_stride = row_stride(g, rows), u_stride = row_stride(u, rows);
  dispatch_dtype("swiglu", g, [&](auto zero) {
    using T = decltype(zero);
    const auto *from_gate = raw_data(g.const_data_ptr<T>()), *from_up = raw_data(u.const_data_ptr<T>());
    auto* to = raw_data(y.mutable_data_ptr<T>());
    for_each_piece(rows, [&](int64_t row, int64_t first, int64_t count) {
      raw::swiglu(from_gate + row * g_stride + first, from_up + row * u_stride + first, to + row * rows.width + first,
                  count);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward_cpu(const at::Tensor& grad_y, const at::Tensor& gate,
                                                       const at::Tensor& up) {
  check_swiglu(gate, up);
  if (is_half_on_cpu(gate)) {
    const auto [grad_gate, grad_up] = swiglu_backward_cpu(widened(grad_y), widened(gate), widened(up));
    return {narrowed(grad_gate), narrowed(grad_up)};
  }
  const at::Tensor grad = grad_y.contiguous(), g = with_dense_rows(gate), u = with_dense_rows(up);
  auto [grad_gate, grad_up] = empty_beside_each_other(g, u);
  const Rows rows = rows_of({g, u, grad_gate, grad_up});
  const int64_t g_stride = row_stride(g, rows), u_stride = row_stride(u, rows);
  const int64_t to_stride = row_stride(grad_gate, rows);
  dispatch_dtype("swiglu_backward", g, [&](auto zero) {
    using T = decltype(zero);
    const auto *from = raw_data(grad.const_data_ptr<T>()), *from_gate = raw_data(g.const_data_ptr<T>()),
               *from_up = raw_data(u.const_data_ptr<T>());
    auto *to_gate = raw_data(grad_gate.mutable_data_ptr<T>()), *to_up = raw_data(grad_up.mutable_data_ptr<T>());
    for_each_piece(rows, [&](int64_t row, int64_t first, int64_t count) {
      const int64_t to = row * to_stride + first;
      raw::swiglu_backward(from + row * rows.width + first, from_gate + row * g_stride + first,
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
    return once_differentiable("swiglu", "torch::silu and a product", grads, {grad_gate, grad_up});
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
  library.impl("swiglu_forward", swiglu_forward_cpu);
  library.impl("swiglu_backward", swiglu_backward_cpu);
}

}  // namespace fsdp::kernels
