#include "kernels/rope.h"

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

// Two groups of lanes: (x1, x2) -> (x1 c1 - x2 s1, x2 c2 + x1 s2), or the transpose of that map.
template <class T, bool kInverse>
FSDP_ALWAYS_INLINE void rotate(Float x1, Float x2, Float c1, Float c2, Float s1, Float s2, Float& y1, Float& y2) {
  if constexpr (kInverse) {
    y1 = simd::round_to<T>(x1 * c1) + simd::round_to<T>(x2 * s2);
    y2 = simd::round_to<T>(x2 * c2) - simd::round_to<T>(x1 * s1);
  } else {
    y1 = simd::round_to<T>(x1 * c1) - simd::round_to<T>(x2 * s1);
    y2 = simd::round_to<T>(x2 * c2) + simd::round_to<T>(x1 * s2);
  }
}

// All heads of one position: x and y [heads, dim], cos and sin [dim].
template <class T, bool kInverse>
FSDP_ALWAYS_INLINE void rotate_position(const T* x, const T* cos, const T* sin, T* y, int64_t heads, int64_t dim) {
  const int64_t half = dim / 2, whole = half - half % kLanes, rest = half - whole;
  Float y1, y2;
  for (int64_t head = 0; head < heads; ++head, x += dim, y += dim) {
    for (int64_t i = 0; i < whole; i += kLanes) {
      rotate<T, kInverse>(simd::load(x + i), simd::load(x + half + i), simd::load(cos + i), simd::load(cos + half + i),
                          simd::load(sin + i), simd::load(sin + half + i), y1, y2);
      simd::store(y + i, y1);
      simd::store(y + half + i, y2);
    }
    if (rest == 0) continue;
    const int64_t i = whole, j = half + whole;
    rotate<T, kInverse>(simd::load_first(x + i, rest), simd::load_first(x + j, rest), simd::load_first(cos + i, rest),
                        simd::load_first(cos + j, rest), simd::load_first(sin + i, rest),
                        simd::load_first(sin + j, rest), y1, y2);
    simd::store_first(y + i, y1, rest);
    simd::store_first(y + j, y2, rest);
  }
}

// Heads of a position lie side by side; positions are `stride` elements apart.
template <class T>
struct Positions {
  const T* from;
  T* to;
  int64_t from_stride, to_stride;
};

template <class T>
FSDP_ALWAYS_INLINE void rotate_positions_of(Positions<T> x, const T* cos, const T* sin, int64_t positions,
                                            int64_t heads, int64_t dim, bool inverse) {
  for (int64_t i = 0; i < positions; ++i, cos += dim, sin += dim) {
    const T* from = x.from + i * x.from_stride;
    T* to = x.to + i * x.to_stride;
    if (inverse)
      rotate_position<T, true>(from, cos, sin, to, heads, dim);
    else
      rotate_position<T, false>(from, cos, sin, to, heads, dim);
  }
}

FSDP_SIMD_CLONES void rotate_positions(const Positions<float>& x, const float* cos, const float* sin, int64_t positions,
                                       int64_t heads, int64_t dim, bool inverse) {
  rotate_positions_of(x, cos, sin, positions, heads, dim, inverse);
}

FSDP_SIMD_CLONES void rotate_positions(const Positions<at::BFloat16>& x, const at::BFloat16* cos,
                                       const at::BFloat16* sin, int64_t positions, int64_t heads, int64_t dim,
                                       bool inverse) {
  rotate_positions_of(x, cos, sin, positions, heads, dim, inverse);
}

// x, y [B, T, heads * D] with dense rows; they may be one tensor.
void rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse, const at::Tensor& y) {
  const at::Tensor cosine = cos.contiguous(), sine = sin.contiguous();
  const int64_t length = x.size(1), dim = cos.size(-1), table_stride = cos.dim() == 3 ? length * dim : 0;
  const Rows rows{x.size(0) * length, x.size(2)};
  const int64_t from_stride = row_stride(x, rows), to_stride = row_stride(y, rows);
  dispatch_dtype("rope", x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, rows.width));
    parallel_for(0, rows.count, grain, [&](int64_t begin, int64_t end) {
      while (begin < end) {  // up to the end of a row: its part of the tables is contiguous
        const int64_t row = begin / length, position = begin % length, count = std::min(end - begin, length - position);
        const int64_t table = row * table_stride + position * dim;
        const Positions<T> positions{x.const_data_ptr<T>() + begin * from_stride,
                                     y.mutable_data_ptr<T>() + begin * to_stride, from_stride, to_stride};
        rotate_positions(positions, cosine.const_data_ptr<T>() + table, sine.const_data_ptr<T>() + table, count,
                         rows.width / dim, dim, inverse);
        begin += count;
      }
    });
  });
}

at::Tensor rotate_tensor(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  check_rope(x, cos, sin);
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
    return {grad_q, grad_k, at::Tensor(), at::Tensor()};
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
    return {grad_q.view(grads[0].sizes()), grad_k.view(grads[1].sizes()), at::Tensor(), at::Tensor()};
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
