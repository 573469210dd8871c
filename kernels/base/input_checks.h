// What operators ask of their inputs, whatever device they run on. All throw c10::Error, and none looks at the values
// of tensors; that inputs lie on one device is for the operator of that device to check.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

struct LossTerms;

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight);
void check_residual(const at::Tensor& x, const at::Tensor& residual);
void check_swiglu(const at::Tensor& gate, const at::Tensor& up);
void check_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
void check_embedding(const at::Tensor& weight, const at::Tensor& ids);
void check_cross_entropy(const at::Tensor& logits_NV, const at::Tensor& targets_N, const LossTerms& terms);
void check_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N);
void check_causal_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD);
// Lengths are positive and add up to the tokens; none: each row of q is a document.
void check_documents(const at::Tensor& q_BTHD, at::IntArrayRef lengths, int64_t window);

}  // namespace fsdp::kernels
