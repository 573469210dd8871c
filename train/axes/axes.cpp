#include "train/axes/axes.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <vector>

#include "train/axes/cut_layers.h"
#include "train/axes/expert_places.h"
#include "train/base/device.h"

namespace fsdp::train {

namespace {

// The same ranks, with "tp" as heads of keys and values and copies of each, which are neighbours.
Mesh with_heads(const Mesh& mesh, int64_t heads) {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name != "tp") {
      axes.push_back(axis);
      continue;
    }
    const int groups = static_cast<int>(std::min<int64_t>(heads, axis.size));
    axes.push_back({"heads of keys and values", groups});
    axes.push_back({"copies of keys and values", axis.size / groups});
  }
  return {mesh.world(), axes};
}

bool is_of_keys_or_values(const std::string& name) {
  return name.find("k_proj.") != std::string::npos || name.find("v_proj.") != std::string::npos;
}

}  // namespace

std::shared_ptr<Axes> Axes::of(const Mesh& mesh, parallel::ContextExchange exchange, int64_t heads) {
  return mesh.size("tp") * mesh.size("cp") > 1 ? std::make_shared<Axes>(mesh, exchange, heads) : nullptr;
}

Axes::Axes(const Mesh& mesh, parallel::ContextExchange exchange, int64_t heads)
    : tensor_(parallel::Ranks::along(mesh, "tp")),
      context_(parallel::Ranks::along(mesh, "cp")),
      heads_(parallel::Ranks::along(with_heads(mesh, heads), "heads of keys and values")),
      copies_(parallel::Ranks::along(with_heads(mesh, heads), "copies of keys and values")),
      exchange_(exchange) {}

parallel::ContextExchange exchange_on(const std::string& device, const std::string& asked) {
  using parallel::ContextExchange;
  if (asked == "ring") return ContextExchange::kRing;
  return asked == "auto" && has_messages(device) ? ContextExchange::kAuto : ContextExchange::kGather;
}

std::optional<int64_t> cut_dimension(const std::string& name) {
  const auto is_of = [&](const char* map) { return name.find(map) != std::string::npos; };
  for (const char* map : {"q_proj.", "k_proj.", "v_proj.", "q_b_proj.", "kv_b_proj.", "gate_proj.", "up_proj.",
                          "embed_tokens.", "lm_head."}) {
    if (!is_of(map)) continue;
    return is_of(".lora_A.") ? std::nullopt : std::optional<int64_t>(0);  // a bias likewise
  }
  if (!is_of("o_proj.") && !is_of("down_proj.")) return std::nullopt;
  return name.ends_with(".bias") || is_of(".lora_B.") ? std::nullopt : std::optional<int64_t>(1);
}

void Axes::cut(const std::string& name, const at::Tensor& parameter) const {
  const auto dim = cut_dimension(name);
  if (dim && tensor_->size() > 1)
    parallel::cut_parameter(parameter, *dim, is_of_keys_or_values(name) ? *heads_ : *tensor_, name);
}

void Axes::connect(models::Decoder& decoder) const {
  decoder->set_across(std::make_shared<CutLayers>(tensor_, context_, exchange_));
  if (tensor_->size() == 1) return;
  for (const auto& item : decoder->named_parameters()) {
    if (item.value().requires_grad()) sum_gradients(item.value(), item.key());
  }
}

// Of what several ranks have alike, where nothing else adds them up.
void Axes::sum_gradients(const at::Tensor& parameter, const std::string& name) const {
  if (is_of_experts(name)) return;  // units of their own, over these ranks too
  const bool is_cut = cut_dimension(name).has_value();
  if (is_cut && (!is_of_keys_or_values(name) || copies_->size() == 1)) return;
  parameter.register_hook([ranks = is_cut ? copies_ : tensor_, name](const at::Tensor& grad) {
    return parallel::leave_parts(grad, ranks, name);  // a sum that can be differentiated again
  });
}

at::Tensor Axes::whole_sequences(const at::Tensor& parts, int64_t dim) const {
  if (context_->size() == 1) return parts;
  return parallel::zigzag_in_order(context_->gather(parts, dim, "sequences"), dim, context_->size());
}

}  // namespace fsdp::train
