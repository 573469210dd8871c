#include "fsdp/unit/shard_where.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <set>

#include "fsdp/group/registry.h"

namespace fsdp {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// Elements of parameters that no unit has and nobody asked to leave alone.
template <class Parameters>
int64_t unowned_numel(const Parameters& parameters, const ShardOptions& options) {
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& ignored : options.ignored_parameters) seen.insert(ignored.unsafeGetTensorImpl());
  int64_t numel = 0;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (!registry::find_parameter(parameter)) numel += parameter.numel();
  }
  return numel;
}

void shard_below(torch::nn::Module& module, const std::string& prefix, const WrapPolicy& policy, const Mesh& mesh,
                 const ShardOptions& options, std::set<const torch::nn::Module*>& seen) {
  for (const auto& child : module.named_children()) {
    if (!seen.insert(child.value().get()).second) continue;
    const std::string name = joined(prefix, child.key());
    shard_below(*child.value(), name, policy, mesh, options, seen);
    const int64_t numel = unowned_numel(child.value()->parameters(), options);
    if (numel > 0 && policy(name, *child.value(), numel)) fully_shard(*child.value(), mesh, options);
  }
}

std::string class_name(const torch::jit::Module& module) {
  const auto name = module.type()->name();
  return name ? name->name() : std::string();
}

void shard_below(const torch::jit::Module& module, const std::string& prefix, const ScriptWrapPolicy& policy,
                 const Mesh& mesh, const ShardOptions& options, std::set<const void*>& seen) {
  for (const auto& child : module.named_children()) {
    if (!seen.insert(child.value._ivalue().get()).second) continue;
    const std::string name = joined(prefix, child.name);
    shard_below(child.value, name, policy, mesh, options, seen);
    const int64_t numel = unowned_numel(child.value.parameters(), options);
    torch::jit::Module unit = child.value;
    if (numel > 0 && policy(name, class_name(unit), numel)) fully_shard(unit, mesh, options);
  }
}

}  // namespace

WrapPolicy by_size(int64_t min_numel) {
  return [min_numel](const std::string&, const torch::nn::Module& module, int64_t numel) {
    const bool only_holds = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
                            dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
    return numel >= min_numel && !only_holds;
  };
}

ScriptWrapPolicy script_by_size(int64_t min_numel) {
  return [min_numel](const std::string&, const std::string&, int64_t numel) { return numel >= min_numel; };
}

Unit shard_where(torch::nn::Module& root, const WrapPolicy& policy, const Mesh& mesh, const ShardOptions& options) {
  std::set<const torch::nn::Module*> seen;
  shard_below(root, "", policy, mesh, options, seen);
  return fully_shard(root, mesh, options);
}

Unit shard_where(torch::jit::Module& root, const ScriptWrapPolicy& policy, const Mesh& mesh,
                 const ShardOptions& options) {
  std::set<const void*> seen;
  shard_below(root, "", policy, mesh, options, seen);
  return fully_shard(root, mesh, options);
}

}  // namespace fsdp
