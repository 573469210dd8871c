#include "fsdp/parallel/context_attention.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/parallel/regions.h"
#include "fsdp/parallel/zigzag.h"

namespace fsdp::parallel {

void check_context_shapes(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                          const std::string& layer) {
  FSDP_CHECK(q_BTHD.dim() == 4 && k_BTKD.dim() == 4 && k_BTKD.sizes() == v_BTKD.sizes() &&
                 k_BTKD.size(0) == q_BTHD.size(0) && k_BTKD.size(1) == q_BTHD.size(1) &&
                 q_BTHD.size(2) % k_BTKD.size(2) == 0,
             "[parallel] '", layer, "': got queries ", q_BTHD.sizes(), ", keys ", k_BTKD.sizes(), " and values ",
             v_BTKD.sizes(), ", expected [B, T/N, H, D] and twice [B, T/N, K, D], of which K divides H.");
}

void check_documents(const ContextView& view, int64_t tokens, const std::string& layer) {
  FSDP_CHECK(!view.documents_BT.defined() || (view.documents_BT.dim() == 2 && view.documents_BT.size(1) == tokens),
             "[parallel] ", layer, ": got documents ", view.documents_BT.sizes(), ", expected [B, ", tokens,
             "], of all tokens of the sequences.");
}

namespace {

void check_mask(const at::Tensor& mask, const at::Tensor& q_BTHD, int ranks, const std::string& layer) {
  const int64_t own = q_BTHD.size(1);
  FSDP_CHECK(mask.dim() >= 2 && mask.size(-2) == own && mask.size(-1) == own * ranks &&
                 (mask.dim() == 2 || mask.size(0) == q_BTHD.size(0)),
             "[parallel] '", layer, "': got a mask ", mask.sizes(), " for queries ", q_BTHD.sizes(), " on ", ranks,
             " ranks, expected what context_mask() makes of these sequences.");
}

}  // namespace

at::Tensor context_mask(int64_t tokens, const ContextView& view, const Ranks& ranks, const at::TensorOptions& options) {
  check_documents(view, tokens, "context_mask");
  const at::Tensor positions = zigzag_positions(tokens, ranks.rank(), ranks.size()).to(options.device());
  const at::Tensor before = positions.unsqueeze(1) - at::arange(tokens, positions.options()).unsqueeze(0);
  at::Tensor is_seen = before.ge(0);
  if (view.window > 0) is_seen = is_seen.logical_and_(before.lt(view.window));
  if (view.documents_BT.defined()) {
    const at::Tensor documents_BT = view.documents_BT.to(options.device());
    const at::Tensor own = documents_BT.index_select(1, positions);
    is_seen = own.unsqueeze(2).eq(documents_BT.unsqueeze(1)).logical_and_(is_seen).unsqueeze(1);
  }
  return at::zeros(is_seen.sizes(), options.requires_grad(false))
      .masked_fill_(is_seen.logical_not_(), -std::numeric_limits<double>::infinity());
}

at::Tensor context_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                             const at::Tensor& mask, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  check_context_shapes(q_BTHD, k_BTKD, v_BTKD, layer);
  check_mask(mask, q_BTHD, ranks->size(), layer);
  const at::Tensor parts = enter_parts_from_tokens(at::stack({k_BTKD, v_BTKD}), 2, ranks, layer);
  const at::Tensor whole = zigzag_in_order(parts, 2, ranks->size());
  const int64_t queries_of_a_key = q_BTHD.size(2) / k_BTKD.size(2), chunk = q_BTHD.size(1) / 2;
  const auto heads = [&](const at::Tensor& x) { return x.transpose(1, 2).repeat_interleave(queries_of_a_key, 1); };
  const at::Tensor q_BHTD = q_BTHD.transpose(1, 2), k_BHTD = heads(whole[0]), v_BHTD = heads(whole[1]);
  // Each of the two chunks with the keys up to its end, so that all ranks multiply equally many.
  std::vector<at::Tensor> results;
  for (const int64_t number : {int64_t{ranks->rank()}, int64_t{2 * ranks->size() - 1 - ranks->rank()}}) {
    const int64_t first = static_cast<int64_t>(results.size()) * chunk, keys = (number + 1) * chunk;
    results.push_back(at::scaled_dot_product_attention(q_BHTD.narrow(2, first, chunk), k_BHTD.narrow(2, 0, keys),
                                                       v_BHTD.narrow(2, 0, keys),
                                                       mask.narrow(-2, first, chunk).narrow(-1, 0, keys)));
  }
  return at::cat(results, 2).transpose(1, 2);
}

}  // namespace fsdp::parallel
