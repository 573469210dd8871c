#include "models/decoder_layer.h"

#include <ATen/ATen.h>

#include <utility>

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

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : input_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      post_attention_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      run_input_(run_plainly) {
  if (config.latent.rank > 0) {
    latent_attn_ = register_module("self_attn", LatentAttention(config, layer, options));
  } else {
    self_attn_ = register_module("self_attn", Attention(config, layer, options));
  }
  if (config.has_experts(layer)) {
    mixture_ = register_module("mlp", Mixture(config, options));
  } else {
    mlp_ = register_module("mlp", GatedMlp(config.hidden_size, config.intermediate_size, options));
  }
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

void DecoderLayerImpl::set_projections(Projections projections) {
  if (!self_attn_.is_empty()) self_attn_->set_projections(projections);
  GatedMlp mlp = mixture_.is_empty() ? mlp_ : mixture_->shared_experts();
  if (!mlp.is_empty()) mlp->set_projections(projections);
}

void DecoderLayerImpl::set_across(const std::shared_ptr<AcrossRanks>& across, const std::string& name) {
  if (!self_attn_.is_empty()) self_attn_->set_across(across, name + ".self_attn");
  if (!latent_attn_.is_empty()) latent_attn_->set_across(across, name + ".self_attn");
  if (!mlp_.is_empty()) mlp_->set_across(across, name + ".mlp");
  if (mixture_.is_empty() || mixture_->shared_experts().is_empty()) return;  // experts see a token by itself
  GatedMlp shared = mixture_->shared_experts();
  shared->set_across(across, name + ".mlp.shared_experts");
}

void DecoderLayerImpl::set_input_runner(NotKept not_kept, InputRunner run_input) {
  not_kept_ = not_kept;
  run_input_ = not_kept == NotKept::kNothing ? run_plainly : std::move(run_input);
}

std::vector<at::Tensor> DecoderLayerImpl::project(const at::Tensor& normed_BTE) {
  return latent_attn_.is_empty() ? self_attn_->project(normed_BTE) : latent_attn_->project(normed_BTE);
}

// What `make` functions capture, they capture by value: they may be called again after this forward has returned.
at::Tensor DecoderLayerImpl::forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) {
  const std::vector<at::Tensor> projections =
      run_input_(call_of(input_layernorm_), {x_BTE}, [&](const at::Tensor& normed_BTE) { return project(normed_BTE); });
  const at::Tensor attended_BTE =
      latent_attn_.is_empty() ? self_attn_->attend(projections, inputs) : latent_attn_->attend(projections, inputs);
  if (not_kept_ == NotKept::kNothing) {
    const auto [h_BTE, normed_BTE] = post_attention_layernorm_->forward_sum(x_BTE, attended_BTE);
    return h_BTE + (mixture_.is_empty() ? mlp_(normed_BTE) : mixture_(normed_BTE, *balance_));
  }
  const at::Tensor h_BTE = x_BTE + attended_BTE;
  return h_BTE + (mixture_.is_empty() ? run_mlp(h_BTE) : mixture_(post_attention_layernorm_(h_BTE), *balance_));
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
