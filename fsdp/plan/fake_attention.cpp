// Attention in a pass without values. LibTorch chooses its operator by device, and has but the one that keeps all
// scores for the meta device; a pass takes the one that a CPU would, which keeps as much as those of GPUs.
#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "fsdp/plan/fake_pass.h"

namespace fsdp::plan {
namespace {

struct AttentionInputs {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  bool shares_heads;
};

at::Tensor unfilled(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

bool is_fused_on_cpu(const AttentionInputs& in) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake);
  const std::optional<at::Tensor> mask = in.mask ? std::optional(unfilled(*in.mask)) : std::nullopt;
  const int64_t choice = at::_fused_sdp_choice(unfilled(in.query), unfilled(in.key), unfilled(in.value), mask,
                                               in.dropout, in.is_causal, in.scale, in.shares_heads);
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
}

at::Tensor attend(const AttentionInputs& in) {
  const bool is_mask_of_bits = in.mask && in.mask->scalar_type() == at::kBool;
  if (FakePass::is_running() && !is_mask_of_bits && is_fused_on_cpu(in)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(in.query, in.key, in.value, in.dropout,
                                                                       in.is_causal, in.mask, in.scale));
  }
  return at::native::scaled_dot_product_attention(in.query, in.key, in.value, in.mask, in.dropout, in.is_causal,
                                                  in.scale, in.shares_heads);
}

// Boxed: whether the arguments are as here is found when it is called, not when the library is loaded.
void attend_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const std::vector<c10::IValue> in(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  stack->resize(first);
  stack->push_back(
      attend({in.at(0).toTensor(), in.at(1).toTensor(), in.at(2).toTensor(), in.at(3).toOptional<at::Tensor>(),
              in.at(4).toDouble(), in.at(5).toBool(), in.at(6).toOptional<double>(), in.at(7).toBool()}));
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, library) {
  library.impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&attend_boxed>());
}

}  // namespace
}  // namespace fsdp::plan
