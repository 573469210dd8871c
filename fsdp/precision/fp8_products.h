// Products of LibTorch that fp8 weights go through.
#pragma once

namespace fsdp {

// From now on at::linear, and at::addmm and at::matmul with a transposed weight, which is what torch::nn::Linear calls,
// go to kernels::fp8_linear() where the weight has a recipe (kernels::set_fp8), and to LibTorch's own otherwise. What
// autocast casts is recognised while gradients are recorded. Once in a process, for good; thread-safe.
void watch_products();

}  // namespace fsdp
