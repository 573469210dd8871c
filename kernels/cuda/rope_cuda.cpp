#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"
#include "kernels/operators/rope.h"

namespace fsdp::kernels::cuda {
namespace {

// Heads may lie anywhere, as in one product for q, k and v, but the elements of each side by side.
at::Tensor with_dense_heads(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) <= 1 ? x : x.contiguous(); }

HeadStrides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }

RopeHeads heads_of(const at::Tensor& from, const at::Tensor& to) {
  return {from.const_data_ptr(), to.mutable_data_ptr(), from.size(2), strides_of(from), strides_of(to)};
}

// Both in one launch; the results may be the inputs.
struct Heads {
  at::Tensor q, k;
};

void turn(const Heads& from, const Heads& to, const at::Tensor& cos, const at::Tensor& sin, Turn way) {
  constexpr auto kOp = "rope";
  const at::Tensor& q = from.q;
  check_rope(q, cos, sin);
  check_rope(from.k, cos, sin);
  TORCH_CHECK(q.size(0) == from.k.size(0), "[rope] q and k need the same number of rows: got ", q.sizes(), " and ",
              from.k.sizes());
  check_devices(kOp, {q, from.k, cos, sin});
  const OnDeviceOf device(q);
  const at::Tensor cosine = cos.contiguous(), sine = sin.contiguous();
  const int64_t length = q.size(1), dim = q.size(3);
  const Rope arrays{heads_of(q, to.q),
                    heads_of(from.k, to.k),
                    cosine.const_data_ptr(),
                    sine.const_data_ptr(),
                    cos.dim() == 3 ? length * dim : 0,
                    element_of(kOp, q),
                    q.size(0),
                    length,
                    dim,
                    way};
  C10_CUDA_CHECK(launch_rope(arrays, device.stream()));
}

std::tuple<at::Tensor, at::Tensor> rope(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                        const at::Tensor& sin, bool inverse) {
  check_rope(q, cos, sin);
  check_rope(k, cos, sin);
  const Heads turned{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options())};
  turn({with_dense_heads(q), with_dense_heads(k)}, turned, cos, sin, inverse ? Turn::kBackward : Turn::kForward);
  return {turned.q, turned.k};
}

void rope_in_place(at::Tensor& q, at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  const Heads heads{split_heads(q, cos.size(-1)), split_heads(k, cos.size(-1))};
  TORCH_CHECK(heads.q.stride(3) == 1 && heads.k.stride(3) == 1,
              "[rope] q and k are rotated in place: expected a last stride of 1, got strides ", heads.q.strides(),
              " and ", heads.k.strides());
  turn(heads, heads, cos, sin, Turn::kForward);
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("rope", rope);
  library.impl("rope_", rope_in_place);
}

}  // namespace fsdp::kernels::cuda
