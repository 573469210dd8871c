// Weights whose products are made of fp8 numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/products/fp8_recipe.h"

namespace fsdp::kernels {

// linear() and fused_linear() take the weight so from now on, for as long as it lives; nothing: no longer. Thread-safe.
void set_fp8(const at::Tensor& weight, std::optional<Fp8Recipe> recipe);
// The recipe stays from now on: the weight's numbers are rounded for it. fsdp::fp8() asks. Thread-safe.
void fix_fp8(const at::Tensor& weight);
bool is_fp8_fixed(const at::Tensor& weight);
// Nothing: an ordinary product. Costs next to nothing in a process without such weights. Thread-safe.
std::optional<Fp8Recipe> fp8_recipe_of(const at::Tensor& weight);
// Whether the process has some.
bool any_fp8_weight();

}  // namespace fsdp::kernels
