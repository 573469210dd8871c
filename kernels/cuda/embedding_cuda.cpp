#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"

namespace fsdp::kernels::cuda {
namespace {

at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids) {
  constexpr auto kOp = "embedding";
  check_embedding(weight, ids);
  check_devices(kOp, {weight, ids});
  const OnDeviceOf device(weight);
  const at::Tensor table = weight.contiguous(), index = ids.contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  at::Tensor y = at::empty(sizes, table.options());
  const EmbeddingRows arrays{table.const_data_ptr(), index.const_data_ptr<int64_t>(),
                             y.mutable_data_ptr(),   element_of(kOp, weight),
                             index.numel(),          table.size(0),
                             table.size(1)};
  C10_CUDA_CHECK(launch_embedding_rows(arrays, device.stream()));
  return y;
}

// Equal ids keep their order, so that their sum has always the same bits.
void sum_into(const at::Tensor& table, const at::Tensor& grad_NE, const at::Tensor& ids_N, double scale, Fill fill) {
  constexpr auto kOp = "embedding_backward";
  check_devices(kOp, {grad_NE, ids_N, table});
  const at::Tensor grad = grad_NE.contiguous();
  const auto [sorted_ids, order] = at::sort(ids_N, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const EmbeddingGradient arrays{sorted_ids.const_data_ptr<int64_t>(),
                                 order.const_data_ptr<int64_t>(),
                                 grad.const_data_ptr(),
                                 element_of(kOp, grad),
                                 table.mutable_data_ptr(),
                                 element_of(kOp, table),
                                 ids_N.numel(),
                                 table.size(0),
                                 table.size(1),
                                 static_cast<float>(scale),
                                 fill};
  C10_CUDA_CHECK(launch_embedding_gradient(arrays, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor embedding_backward(const at::Tensor& grad_NE, const at::Tensor& ids_N, int64_t rows) {
  const OnDeviceOf device(grad_NE);
  at::Tensor table = at::zeros({rows, grad_NE.size(1)}, grad_NE.options());
  sum_into(table, grad_NE, ids_N, 1, Fill::kWrite);
  return table;
}

void fill_embedding_gradient(const at::Tensor& target, const at::Tensor& grad_NE, const at::Tensor& ids_N, double scale,
                             bool adds) {
  const OnDeviceOf device(grad_NE);
  TORCH_CHECK(target.is_contiguous() && target.scalar_type() == at::kFloat, "[embedding_backward] target: got ",
              target.scalar_type(), " with strides ", target.strides(), ", expected dense float32");
  if (!adds) at::Tensor(target).zero_();
  sum_into(target, grad_NE, ids_N, scale, adds ? Fill::kAdd : Fill::kWrite);
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("embedding", embedding_rows);
  library.impl("embedding_backward", embedding_backward);
  library.impl("fill_embedding_gradient", fill_embedding_gradient);
}

}  // namespace fsdp::kernels::cuda
