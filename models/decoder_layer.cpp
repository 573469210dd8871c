#include "models/decoder_layer.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/operators/swiglu.h"
#include "kernels/products/linear.h"

namespace fsdp::models {
namespace {

std::vector<at::Tensor> run_plainly(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& make,
                                    const std::vector<at::Tensor>& inputs,
                                    const std::function<std::vector<at::Tensor>(const at::Tensor&)>& use) {
  return use(make(inputs));
}

// By value: it may be called again after the forward has returned.
auto call_of(RmsNorm norm) {
  return [norm = std::move(norm)](const std::vector<at::Tensor>& x) mutable { return norm(x[0]); };
}

}  // namespace

GatedMlpImpl::GatedMlpImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : gate_proj_(config.hidden_size, config.intermediate_size, options),
      up_proj_(config.hidden_size, config.intermediate_size, options),
      down_proj_(config.intermediate_size, config.hidden_size, options) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

at::Tensor GatedMlpImpl::activate(const std::vector<at::Tensor>& gate_and_up) {
  return kernels::swiglu(gate_and_up[0], gate_and_up[1]);
}

at::Tensor GatedMlpImpl::project_down(const at::Tensor& product_BTI) {
  return across_ ? across_->leave_layer(kernels::linear(product_BTI, down_proj_->weight), down_proj_->bias, name_)
                 : down_proj_(product_BTI);
}

void GatedMlpImpl::set_across(std::shared_ptr<AcrossRanks> across, const std::string& name) {
  across_ = std::move(across);
  name_ = name;
}

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : self_attn_(config, layer, options),
      mlp_(config, options),
      input_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      post_attention_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      run_input_(run_plainly) {
  register_module("self_attn", self_attn_);
  register_module("mlp", mlp_);
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

void DecoderLayerImpl::set_projections(Projections projections) {
  self_attn_->set_projections(projections);
  mlp_->set_projections(projections);
}

void DecoderLayerImpl::set_across(const std::shared_ptr<AcrossRanks>& across, const std::string& name) {
  self_attn_->set_across(across, name + ".self_attn");
  mlp_->set_across(across, name + ".mlp");
}

void DecoderLayerImpl::set_input_runner(NotKept not_kept, InputRunner run_input) {
  not_kept_ = not_kept;
  run_input_ = not_kept == NotKept::kNothing ? run_plainly : std::move(run_input);
}

// What `make` functions capture, they capture by value: they may be called again after this forward has returned.
at::Tensor DecoderLayerImpl::forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) {
  const std::vector<at::Tensor> projections =
      run_input_(call_of(input_layernorm_), {x_BTE},
                 [&](const at::Tensor& normed_BTE) { return self_attn_->project(normed_BTE); });
  const at::Tensor attended_BTE = self_attn_->attend(projections, inputs);
  if (not_kept_ == NotKept::kNothing) {
    const auto [h_BTE, normed_BTE] = post_attention_layernorm_->forward_sum(x_BTE, attended_BTE);
    return h_BTE + mlp_(normed_BTE);
  }
  const at::Tensor h_BTE = x_BTE + attended_BTE;
  return h_BTE + run_mlp(h_BTE);
}

// In parts, some of which are computed again.
at::Tensor DecoderLayerImpl::run_mlp(const at::Tensor& x_BTE) {
  const auto project_down = [&](const at::Tensor& product_BTI) {
    return std::vector<at::Tensor>{mlp_->project_down(product_BTI)};
  };
  if (not_kept_ == NotKept::kGateUp) {
    const auto from_norm_to_product = [norm = post_attention_layernorm_, mlp = mlp_](const auto& x) mutable {
      return GatedMlpImpl::activate(mlp->project(norm(x[0])));
    };
    return run_input_(from_norm_to_product, {x_BTE}, project_down)[0];
  }
  const std::vector<at::Tensor> gate_and_up =
      run_input_(call_of(post_attention_layernorm_), {x_BTE},
                 [&](const at::Tensor& normed_BTE) { return mlp_->project(normed_BTE); });
  return run_input_(GatedMlpImpl::activate, gate_and_up, project_down)[0];
}

}  // namespace fsdp::models
