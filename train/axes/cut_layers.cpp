#include "train/axes/cut_layers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/operators/causal_attention.h"
#include "kernels/operators/embedding.h"
#include "kernels/products/linear.h"

namespace fsdp::train {
namespace {

constexpr int64_t kTokenDim = -2;
constexpr const char* kHead = "lm_head";

// The number of its document for each token of rows; undefined: each row is one.
at::Tensor documents_of(const std::vector<int64_t>& lengths, int64_t rows) {
  if (lengths.empty()) return {};
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < lengths.size(); ++i)
    numbers.insert(numbers.end(), static_cast<size_t>(lengths[i]), static_cast<int64_t>(i));
  return at::tensor(numbers, at::kLong).view({rows, -1});
}

}  // namespace

at::Tensor CutLayers::enter_layer(const at::Tensor& x_BTE, const std::string& layer) {
  return parallel::enter_parts_from_tokens(x_BTE, kTokenDim, ranks_, layer);
}

at::Tensor CutLayers::leave_layer(const at::Tensor& y_BTE, const at::Tensor& bias_E, const std::string& layer) {
  const at::Tensor sum = parallel::leave_parts_to_tokens(y_BTE, kTokenDim, ranks_, layer);
  return bias_E.defined() ? sum + bias_E : sum;
}

at::Tensor CutLayers::embed(const at::Tensor& weight_VE, const at::Tensor& ids_BT) {
  if (ranks_->size() == 1) return kernels::embedding(weight_VE, ids_BT);
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
  if (ranks_->size() == 1)
    return kernels::linear_cross_entropy(hidden_BTE.flatten(0, 1), weight_VE, targets_N, reduction, terms);
  const at::Tensor logits_NV = kernels::linear(enter_layer(hidden_BTE, kHead).flatten(0, 1), weight_VE);
  const at::Tensor losses_N = parallel::vocab_cross_entropy(logits_NV, targets_N, ranks_, kernels::kIgnoreIndex,
                                                            {terms.z_loss, terms.label_smoothing});
  const at::Tensor sum = losses_N.sum(at::kDouble).to(at::kFloat);
  if (reduction == kernels::Reduction::kSum) return sum;
  return sum / static_cast<double>(std::max<int64_t>(1, kernels::count_valid_targets(targets_N)));
}

at::Tensor CutLayers::part_of_sequences(const at::Tensor& x_BT) const {
  return parallel::zigzag_part(x_BT, 1, context_->rank(), context_->size());
}

at::Tensor CutLayers::attend(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                             const std::vector<int64_t>& document_lengths, int64_t window, const std::string& layer) {
  if (context_->size() == 1) return kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, document_lengths, window);
  const bool has_documents = !document_lengths.empty();
  if (choose_exchange(exchange_, k_BTKD, has_documents, *context_) == parallel::ContextExchange::kRing) {
    const parallel::ContextView view = {documents_of(document_lengths, q_BTHD.size(0)), window};
    return parallel::ring_attention(q_BTHD, k_BTKD, v_BTKD, view, context_, layer);
  }
  return parallel::context_attention(q_BTHD, k_BTKD, v_BTKD, mask_of(q_BTHD, document_lengths, window), context_,
                                     layer);
}

const at::Tensor& CutLayers::mask_of(const at::Tensor& q_BTHD, const std::vector<int64_t>& document_lengths,
                                     int64_t window) {
  const int64_t rows = q_BTHD.size(0), tokens = q_BTHD.size(1) * context_->size();
  View& view = views_[window];
  const bool fits = view.mask.defined() && view.mask.size(-1) == tokens && view.document_lengths == document_lengths &&
                    (document_lengths.empty() || view.mask.size(0) == rows) && view.mask.dtype() == q_BTHD.dtype() &&
                    !view.mask.is_inference();
  if (fits) return view.mask;
  view = {document_lengths,
          parallel::context_mask(tokens, {documents_of(document_lengths, rows), window}, *context_, q_BTHD.options())};
  return view.mask;
}

}  // namespace fsdp::train
