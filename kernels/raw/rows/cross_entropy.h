// Rows of logits: their normaliser, their mean, and the gradient of a loss over them. Single-threaded, allocate
// nothing.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// log(sum of e^logit), logits shifted by the highest first.
float log_sum_exp(const float* logits, int64_t vocab);
float log_sum_exp(const Bf16* logits, int64_t vocab);

float mean(const float* logits, int64_t vocab);
float mean(const Bf16* logits, int64_t vocab);

// The gradient of one row: (softmax(logits) * slope - spread - (at the target ? peak : 0)) * scale.
struct LossGradient {
  float log_sum_exp, slope, spread, peak, scale;
};

void loss_gradient(const float* logits, const LossGradient& row, int64_t target, float* grad, int64_t vocab);
void loss_gradient(const Bf16* logits, const LossGradient& row, int64_t target, Bf16* grad, int64_t vocab);

}  // namespace fsdp::kernels::raw
