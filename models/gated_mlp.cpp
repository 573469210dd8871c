#include "models/gated_mlp.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/operators/swiglu.h"

namespace fsdp::models {

GatedMlpImpl::GatedMlpImpl(int64_t hidden, int64_t inner, const at::TensorOptions& options)
    : gate_proj_(hidden, inner, options), up_proj_(hidden, inner, options), down_proj_(inner, hidden, options) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

at::Tensor GatedMlpImpl::activate(const std::vector<at::Tensor>& gate_and_up) {
  return kernels::swiglu(gate_and_up[0], gate_and_up[1]);
}

at::Tensor GatedMlpImpl::project_down(const at::Tensor& product_BTI) {
  return across_ ? across_->leave_layer(down_proj_->without_bias(product_BTI), down_proj_->bias, name_)
                 : down_proj_(product_BTI);
}

void GatedMlpImpl::set_across(std::shared_ptr<AcrossRanks> across, const std::string& name) {
  across_ = std::move(across);
  name_ = name;
}

}  // namespace fsdp::models
