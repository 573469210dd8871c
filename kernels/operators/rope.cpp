#include "kernels/operators/rope.h"

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
#include "kernels/raw/rows/rope.h"

namespace fsdp::kernels {
namespace {

constexpr const char* kRopeOfLibTorch = "products with cos and sin";

// x, y [B, T, heads * D] with dense rows; they may be one tensor.
void rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse, const at::Tensor& y) {
  const at::Tensor cosine = cos.contiguous(), sine = sin.contiguous();
  const int64_t length = x.size(1), dim = cos.size(-1), table_stride = cos.dim() == 3 ? length * dim : 0;
  const Rows rows{x.size(0) * length, x.size(2)};
  const int64_t from_stride = row_stride(x, rows), to_stride = row_stride(y, rows);
  dispatch_dtype("rope", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, rows.count, rows_per_task(rows.width), [&](int64_t begin, int64_t end) {
      while (begin < end) {  // up to the end of a row: its part of the tables is contiguous
        const int64_t row = begin / length, position = begin % length, count = std::min(end - begin, length - position);
        const int64_t table = row * table_stride + position * dim;
        raw::rope(raw::RopePositions<Raw<T>>{raw_data(x.const_data_ptr<T>()) + begin * from_stride,
                                             raw_data(y.mutable_data_ptr<T>()) + begin * to_stride, from_stride,
                                             to_stride, raw_data(cosine.const_data_ptr<T>()) + table,
                                             raw_data(sine.const_data_ptr<T>()) + table, count, rows.width / dim, dim},
                  inverse);
        begin += count;
      }
    });
  });
}

at::Tensor rotate_tensor(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  check_rope(x, cos, sin);
  if (is_half_on_cpu(x)) return narrowed(rotate_tensor(widened(x), widened(cos), widened(sin), inverse));
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() > 0) rotate_rows(with_dense_rows(x.flatten(2)), cos, sin, inverse, y.flatten(2));
  return y;
}

std::tuple<at::Tensor, at::Tensor> rope_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                            const at::Tensor& sin, bool inverse) {
  return {rotate_tensor(q, cos, sin, inverse), rotate_tensor(k, cos, sin, inverse)};
}

void rope_in_place_cpu(at::Tensor& q, at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  for (const at::Tensor& x : {split_heads(q, cos.size(-1)), split_heads(k, cos.size(-1))}) {
    check_rope(x, cos, sin);
    if (x.numel() == 0) continue;
    TORCH_CHECK(x.stride(3) == 1 && x.stride(2) == x.size(3) && is_in_dense_rows(x.flatten(2)),
                "[rope] q and k are rotated in place: expected heads side by side in tokens equally far apart, got ",
                "strides ", x.strides(), " for sizes ", x.sizes());
    if (is_half_on_cpu(x)) {
      at::Tensor(x).copy_(rotate_tensor(x, cos, sin, /*inverse=*/false));
      continue;
    }
    rotate_rows(x.flatten(2), cos, sin, /*inverse=*/false, x.flatten(2));
  }
}

std::tuple<at::Tensor, at::Tensor> call_rope(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                             const at::Tensor& sin, bool inverse) {
  static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>("fsdp::rope");
  return op.call(q, k, cos, sin, inverse);
}

void call_rope_in_place(at::Tensor& q, at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  static const auto op =
      find_operator<void(at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&)>("fsdp::rope_");
  op.call(q, k, cos, sin);
}

struct Rope : torch::autograd::Function<Rope> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    auto [rotated_q, rotated_k] = call_rope(q, k, cos, sin, /*inverse=*/false);
    return {rotated_q, rotated_k};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_q, grad_k] = call_rope(grads[0], grads[1], saved[0], saved[1], /*inverse=*/true);
    return once_differentiable("rope", kRopeOfLibTorch, grads, {grad_q, grad_k, at::Tensor(), at::Tensor()});
  }
};

struct RopeInPlace : torch::autograd::Function<RopeInPlace> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::Tensor q, at::Tensor k,
                                                const at::Tensor& cos, const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    context->mark_dirty({q, k});
    call_rope_in_place(q, k, cos, sin);
    return {q, k};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const int64_t dim = saved[0].size(-1);
    auto [grad_q, grad_k] =
        call_rope(split_heads(grads[0], dim), split_heads(grads[1], dim), saved[0], saved[1], /*inverse=*/true);
    return once_differentiable(
        "rope", kRopeOfLibTorch, grads,
        {grad_q.view(grads[0].sizes()), grad_k.view(grads[1].sizes()), at::Tensor(), at::Tensor()});
  }
};

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t dim) {
  if (x.dim() == 4) return x;
  TORCH_CHECK(x.dim() == 3 && dim > 0 && x.size(2) % dim == 0, "[rope] x [B, T, heads * ", dim, "] or [B, T, heads, ",
              dim, "] needed: got ", x.sizes());
  return x.unflatten(2, {x.size(2) / dim, dim});
}

void check_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.dim() == 4 && x.size(3) % 2 == 0, "[rope] x [B, T, heads, even D] needed: got ", x.sizes());
  TORCH_CHECK(cos.sizes() == sin.sizes(), "[rope] cos and sin need one shape: got ", cos.sizes(), " and ", sin.sizes());
  const bool shared = cos.dim() == 2 && cos.size(0) == x.size(1);
  const bool per_row = cos.dim() == 3 && cos.size(0) == x.size(0) && cos.size(1) == x.size(1);
  TORCH_CHECK((shared || per_row) && cos.size(-1) == x.size(3), "[rope] cos and sin [T, D] or [B, T, D] needed for x ",
              x.sizes(), ": got ", cos.sizes());
  TORCH_CHECK(x.scalar_type() == cos.scalar_type() && x.scalar_type() == sin.scalar_type(), "[rope] x is ",
              x.scalar_type(), ", cos ", cos.scalar_type(), ", sin ", sin.scalar_type(), ": cast them to one dtype");
}

std::pair<at::Tensor, at::Tensor> apply_rope(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                             const at::Tensor& sin) {
  auto rotated = Rope::apply(q, k, cos, sin);
  return {rotated[0], rotated[1]};
}

void apply_rope_(at::Tensor& q, at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  auto rotated = RopeInPlace::apply(q, k, cos, sin);
  q = rotated[0];
  k = rotated[1];
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("rope_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin) -> ()");
  library.def("rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool inverse) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("rope", rope_cpu);
  library.impl("rope_", rope_in_place_cpu);
}

}  // namespace fsdp::kernels
