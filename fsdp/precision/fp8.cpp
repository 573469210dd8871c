#include "fsdp/precision/fp8.h"

#include <torch/nn/modules/linear.h>

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/precision/fp8_products.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/fp8_weights.h"

namespace fsdp {
namespace {

using NamedLinears = std::vector<std::pair<std::string, const torch::nn::LinearImpl*>>;

NamedLinears linear_layers(torch::nn::Module& module) {
  NamedLinears layers;
  for (const auto& item : module.named_modules()) {
    if (const auto* linear = item.value()->as<torch::nn::LinearImpl>()) layers.emplace_back(item.key(), linear);
  }
  return layers;
}

std::string list_of(const NamedLinears& layers) {
  std::string text;
  for (const auto& [name, layer] : layers) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

NamedLinears chosen_layers(const NamedLinears& all, const Fp8Filter& filter) {
  NamedLinears chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (filter ? filter(all[i].first) : i > 0 && i + 1 < all.size()) chosen.push_back(all[i]);
  }
  if (!chosen.empty()) return chosen;
  FSDP_THROW(kUsage, "[fp8] got no torch::nn::Linear that ",
             filter ? "the filter accepts" : "is neither the first nor the last",
             ", expected at least one. The module has: ", list_of(all), ".");
}

void check_weight(const std::string& layer, const at::Tensor& weight, Fp8Recipe recipe) {
  if (!weight.is_cpu() && !weight.is_meta() && !kernels::has_scaled_product(recipe)) {
    FSDP_THROW(kUsage, "[fp8] layer ", layer, ": got ", kernels::name(recipe), " for a weight on ",
               weight.device().str(),
               ", expected tensorwise or rowwise there: the others are multiplied on the CPU only "
               "in this version.");
  }
  if (kernels::is_fp8_fixed(weight) && kernels::fp8_recipe_of(weight) != recipe) {
    FSDP_THROW(kUsage, "[fp8] layer ", layer, ": got ", kernels::name(recipe),
               " for a weight that travels as fp8 numbers of ", kernels::name(*kernels::fp8_recipe_of(weight)),
               ", expected the same recipe. Choose it before fully_shard(), or leave Precision::gather unset.");
  }
  const int64_t granule = kernels::weight_granule(recipe);
  if (weight.size(0) % granule == 0 && weight.size(1) % granule == 0) return;
  FSDP_THROW(kUsage, "[fp8] layer ", layer, ": got a weight of ", weight.size(0), " x ", weight.size(1),
             ", expected multiples of ", granule, ", as ", kernels::name(recipe),
             " scaling needs. Leave the layer out by a filter, or choose another recipe.");
}

}  // namespace

std::vector<std::string> fp8(torch::nn::Module& module, Fp8Recipe recipe, const Fp8Filter& filter) {
  const NamedLinears layers = chosen_layers(linear_layers(module), filter);
  for (const auto& [name, layer] : layers) check_weight(name, layer->weight, recipe);
  watch_products();
  std::vector<std::string> names;
  for (const auto& [name, layer] : layers) {
    kernels::set_fp8(layer->weight, recipe);
    names.push_back(name);
  }
  return names;
}

Fp8Recipe parse_fp8_recipe(const std::string& name) {
  if (const auto recipe = kernels::find_fp8_recipe(name)) return *recipe;
  FSDP_THROW(kUsage, "[fp8] got the recipe '", name, "', expected tensorwise, rowwise, blockwise, mxfp8 or delayed.");
}

}  // namespace fsdp
