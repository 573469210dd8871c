#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/cuda/tensors.h"
#include "kernels/input_checks.h"

namespace fsdp::kernels::cuda {
namespace {

// Heads may lie anywhere, as in one product for q, k and v, but the elements of each side by side.
at::Tensor with_dense_heads(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) <= 1 ? x : x.contiguous(); }

RopeHeads heads_of(const at::Tensor& from, const at::Tensor& to) {
  return {from.const_data_ptr(), to.mutable_data_ptr(), from.size(2), from.stride(0), from.stride(1), from.stride(2)};
}

// q and k in one launch.
std::tuple<at::Tensor, at::Tensor> rope(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                        const at::Tensor& sin, bool inverse) {
  constexpr auto kOp = "rope";
  check_rope(q, cos, sin);
  check_rope(k, cos, sin);
  TORCH_CHECK(q.size(0) == k.size(0), "[rope] q and k need the same number of rows: got ", q.sizes(), " and ",
              k.sizes());
  check_devices(kOp, {q, k, cos, sin});
  const OnDeviceOf device(q);
  const at::Tensor queries = with_dense_heads(q), keys = with_dense_heads(k);
  const at::Tensor cosine = cos.contiguous(), sine = sin.contiguous();
  at::Tensor turned_q = at::empty(q.sizes(), q.options()), turned_k = at::empty(k.sizes(), k.options());
  const int64_t length = q.size(1), dim = q.size(3);
  const Rope arrays{heads_of(queries, turned_q),
                    heads_of(keys, turned_k),
                    cosine.const_data_ptr(),
                    sine.const_data_ptr(),
                    cos.dim() == 3 ? length * dim : 0,
                    element_of(kOp, q),
                    q.size(0),
                    length,
                    dim,
                    inverse ? Turn::kBackward : Turn::kForward};
  C10_CUDA_CHECK(launch_rope(arrays, device.stream()));
  return {turned_q, turned_k};
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) { library.impl("rope", rope); }

}  // namespace fsdp::kernels::cuda
