#include "train/axes/cut_layers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/operators/embedding.h"
#include "kernels/products/linear.h"

namespace fsdp::train {
namespace {

constexpr int64_t kTokenDim = -2;
constexpr const char* kHead = "lm_head";

}  // namespace

at::Tensor CutLayers::enter_layer(const at::Tensor& x_BTE, const std::string& layer) {
  return parallel::enter_parts_from_tokens(x_BTE, kTokenDim, ranks_, layer);
}

at::Tensor CutLayers::leave_layer(const at::Tensor& y_BTE, const at::Tensor& bias_E, const std::string& layer) {
  const at::Tensor sum = parallel::leave_parts_to_tokens(y_BTE, kTokenDim, ranks_, layer);
  return bias_E.defined() ? sum + bias_E : sum;
}

at::Tensor CutLayers::embed(const at::Tensor& weight_VE, const at::Tensor& ids_BT) {
  const int64_t rows = weight_VE.size(0), begin = ranks_->rank() * rows, all = ranks_->size() * rows;
  const auto [least, most] = at::aminmax(ids_BT);
  TORCH_CHECK(least.item<int64_t>() >= 0 && most.item<int64_t>() < all, "[decoder] input_ids: got ids from ",
              least.item<int64_t>(), " to ", most.item<int64_t>(), ", expected 0 to ", all - 1);
  const at::Tensor is_elsewhere = ids_BT.lt(begin).logical_or_(ids_BT.ge(begin + rows));
  const at::Tensor y_BTE = kernels::embedding(weight_VE, (ids_BT - begin).masked_fill_(is_elsewhere, 0));
  return parallel::leave_parts_to_tokens(y_BTE.masked_fill(is_elsewhere.unsqueeze(-1), 0), kTokenDim, ranks_,
                                         "model.embed_tokens");
}

at::Tensor CutLayers::logits(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE) {
  return parallel::all_tokens(kernels::linear(enter_layer(hidden_BTE, kHead), weight_VE), -1, ranks_, kHead);
}

at::Tensor CutLayers::loss(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                           kernels::Reduction reduction, const kernels::LossTerms& terms) {
  const at::Tensor logits_NV = kernels::linear(enter_layer(hidden_BTE, kHead).flatten(0, 1), weight_VE);
  const at::Tensor losses_N = parallel::vocab_cross_entropy(logits_NV, targets_N, ranks_, kernels::kIgnoreIndex,
                                                            {terms.z_loss, terms.label_smoothing});
  const at::Tensor sum = losses_N.sum(at::kDouble).to(at::kFloat);
  if (reduction == kernels::Reduction::kSum) return sum;
  return sum / static_cast<double>(std::max<int64_t>(1, kernels::count_valid_targets(targets_N)));
}

}  // namespace fsdp::train
