#include "fsdp/parallel/parallelize.h"

#include <ATen/ATen.h>
#include <fnmatch.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>

#include "fsdp/base/check.h"
#include "fsdp/deferred/deferred_init.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/registry.h"
#include "fsdp/parallel/regions.h"

namespace fsdp::parallel {
namespace {

bool fits(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), /*flags=*/0) == 0;
}

struct Chosen {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  Style style;
};

std::vector<Chosen> choose(const torch::nn::Module& module, const Plan& plan) {
  std::vector<Chosen> chosen;
  std::vector<bool> is_used(plan.size());
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!fits(item.key(), plan[i].first)) continue;
      is_used[i] = true;
      chosen.push_back({item.key(), item.value(), plan[i].second});
      break;
    }
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    FSDP_CHECK(is_used[i], "[parallelize] pattern '", plan[i].first,
               "' fits no module, or only modules that a pattern before it takes. Names are those of ",
               "Module::named_modules(); '*' stands for any text.");
  }
  return chosen;
}

void check_linear(const Chosen& layer, const Ranks& ranks, const std::map<const c10::TensorImpl*, int>& uses) {
  const auto* linear = dynamic_cast<const LinearImpl*>(layer.module.get());
  FSDP_CHECK(
      linear != nullptr, "[parallelize] '", layer.name, "': got ", layer.module->name(),
      ", expected fsdp::parallel::Linear. Give the member that type: its constructor, parameters and start values ",
      "are those of torch::nn::Linear, whose forward() cannot be changed from outside. For embeddings take ",
      "VocabEmbedding.");
  const at::Tensor& weight = linear->weight;
  FSDP_CHECK(!is_deferred(weight) && !weight.is_meta(), "[parallelize] '", layer.name,
             "': its weight has no values yet. Cut the model after it was built.");
  FSDP_CHECK(!registry::find_parameter(weight), "[parallelize] '", layer.name,
             "' is sharded already. Call parallelize() before fully_shard().");
  FSDP_CHECK(!registry::find_cut(weight), "[parallelize] '", layer.name, "' is cut already.");
  FSDP_CHECK(
      uses.at(weight.unsafeGetTensorImpl()) == 1, "[parallelize] '", layer.name,
      "': its weight belongs to another module too, which would see the cut one. Untie them, or leave it whole.");
  const bool is_column = layer.style == Style::kColumn;
  check_divides(weight.size(is_column ? 0 : 1), ranks.size(), is_column ? "outputs" : "inputs", layer.name);
}

std::map<const c10::TensorImpl*, int> uses_of_parameters(const torch::nn::Module& module) {
  std::map<const c10::TensorImpl*, int> uses;
  for (const auto& inner : module.modules(/*include_self=*/false)) {
    for (const at::Tensor& tensor : inner->parameters(/*recurse=*/false)) ++uses[tensor.unsafeGetTensorImpl()];
  }
  for (const at::Tensor& tensor : module.parameters(/*recurse=*/false)) ++uses[tensor.unsafeGetTensorImpl()];
  return uses;
}

// Before autograd accumulates them.
void add_up_gradients(const Chosen& chosen, const std::shared_ptr<Ranks>& ranks) {
  for (const auto& item : chosen.module->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    item.value().register_hook([ranks, name = chosen.name + "." + item.key()](const at::Tensor& grad) {
      return leave_parts(grad, ranks, name);  // a sum that can be differentiated again
    });
  }
}

}  // namespace

std::vector<std::string> parallelize(torch::nn::Module& module, const Plan& plan, const Mesh& mesh, Tokens tokens) {
  const std::vector<Chosen> chosen = choose(module, plan);
  const auto ranks = Ranks::along(mesh, "tp");
  const auto uses = uses_of_parameters(module);
  for (const Chosen& each : chosen) {
    if (each.style != Style::kTokens) check_linear(each, *ranks, uses);
    FSDP_CHECK(each.style != Style::kTokens || tokens == Tokens::kOwn, "[parallelize] '", each.name,
               "': got Style::kTokens with Tokens::kAll, where every rank sees all tokens. Use Tokens::kOwn.");
  }
  std::vector<std::string> names;
  for (const Chosen& each : chosen) {
    names.push_back(each.name);
    if (ranks->size() == 1) continue;
    if (each.style == Style::kTokens) {
      add_up_gradients(each, ranks);
    } else {
      const LinearCut how = each.style == Style::kColumn ? LinearCut::kColumn : LinearCut::kRow;
      dynamic_cast<LinearImpl&>(*each.module).cut(how, {ranks, each.name, tokens});
    }
  }
  return names;
}

}  // namespace fsdp::parallel
