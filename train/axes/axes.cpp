#include "train/axes/axes.h"

#include <torch/nn/module.h>

#include "train/axes/cut_layers.h"

namespace fsdp::train {

std::shared_ptr<Axes> Axes::of(const Mesh& mesh, parallel::ContextExchange exchange) {
  return mesh.size("tp") * mesh.size("cp") > 1 ? std::make_shared<Axes>(mesh, exchange) : nullptr;
}

Axes::Axes(const Mesh& mesh, parallel::ContextExchange exchange)
    : tensor_(parallel::Ranks::along(mesh, "tp")), context_(parallel::Ranks::along(mesh, "cp")), exchange_(exchange) {}

parallel::ContextExchange exchange_of(const std::string& name) {
  using parallel::ContextExchange;
  return name == "ring" ? ContextExchange::kRing : name == "gather" ? ContextExchange::kGather : ContextExchange::kAuto;
}

std::optional<int64_t> cut_dimension(const std::string& name) {
  for (const char* map : {"q_proj.", "k_proj.", "v_proj.", "gate_proj.", "up_proj.", "embed_tokens.", "lm_head."}) {
    if (name.find(map) != std::string::npos) return 0;  // a bias likewise
  }
  if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) return 1;
  return std::nullopt;
}

void Axes::cut(const std::string& name, const at::Tensor& parameter) const {
  const auto dim = cut_dimension(name);
  if (dim && tensor_->size() > 1) parallel::cut_parameter(parameter, *dim, *tensor_, name);
}

void Axes::connect(models::Decoder& decoder) const {
  decoder->set_across(std::make_shared<CutLayers>(tensor_, context_, exchange_));
  if (tensor_->size() == 1) return;
  for (const auto& item : decoder->named_parameters()) {
    if (!item.value().requires_grad() || cut_dimension(item.key())) continue;
    item.value().register_hook(
        [ranks = tensor_, name = item.key()](const at::Tensor& grad) { return ranks->sum(grad, name); });
  }
}

at::Tensor Axes::whole_sequences(const at::Tensor& parts, int64_t dim) const {
  if (context_->size() == 1) return parts;
  return parallel::zigzag_in_order(context_->gather(parts, dim, "sequences"), dim, context_->size());
}

}  // namespace fsdp::train
