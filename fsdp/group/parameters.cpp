#include "fsdp/group/parameters.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/leaves.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"

namespace fsdp {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

NamedTensors named_tensors(const torch::jit::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.name, item.value);
  return tensors;
}

// Each distinct parameter once, under its first name; sharded ones replaced by their leaves.
NamedTensors to_leaves(const NamedTensors& tensors) {
  NamedTensors leaves;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto member = registry::find_parameter(tensor);
    if (!member) {
      leaves.emplace_back(name, tensor);
      continue;
    }
    leaves.emplace_back(name, member->group->leaf(member->index).requires_grad_(tensor.requires_grad()));
  }
  return leaves;
}

std::set<std::shared_ptr<GroupOwner>> owners_of(const NamedTensors& tensors) {
  std::set<std::shared_ptr<GroupOwner>> owners;
  for (const auto& [name, tensor] : tensors) {
    if (const auto member = registry::find_parameter(tensor)) owners.insert(member->group->owner());
  }
  owners.erase(nullptr);
  return owners;
}

// A parameter that came after fully_shard(), or lies outside of all units, would be trained by each rank for itself.
void check_owned(const NamedTensors& tensors, const std::set<std::shared_ptr<GroupOwner>>& owners) {
  if (owners.empty()) return;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.requires_grad() || registry::find_parameter(tensor)) continue;
    FSDP_CHECK(std::any_of(owners.begin(), owners.end(), [&](const auto& owner) { return owner->ignores(tensor); }),
               "[parameters] '", name,
               "' is not sharded: it was registered or replaced after fully_shard(), or lies outside of all units, so "
               "that each rank would train its own. Shard the whole model once it is complete, or list the parameter "
               "in ShardOptions::ignored_parameters.");
  }
}

std::set<std::shared_ptr<GroupOwner>> enter_library(const NamedTensors& tensors) {
  const auto owners = owners_of(tensors);
  for (const auto& owner : owners) owner->on_library_entry();
  check_owned(tensors, owners);
  return owners;
}

// What an optimizer gets.
NamedTensors hand_out_leaves(const NamedTensors& tensors) {
  for (const auto& owner : enter_library(tensors)) owner->on_leaves_requested();
  return to_leaves(tensors);
}

std::vector<at::Tensor> without_names(const NamedTensors& tensors) {
  std::vector<at::Tensor> list;
  for (const auto& [name, tensor] : tensors) list.push_back(tensor);
  return list;
}

void clear_gradients(const NamedTensors& tensors) {
  enter_library(tensors);
  for (const auto& [name, tensor] : tensors) at::Tensor(tensor).mutable_grad().reset();
  for (const auto& [name, leaf] : to_leaves(tensors)) at::Tensor(leaf).mutable_grad().reset();
  // What no_sync collected belongs to the gradients that are forgotten here.
  for (const auto& [name, tensor] : tensors) {
    const auto member = registry::find_parameter(tensor);
    if (member) member->group->gradients().drop();
  }
}

}  // namespace

std::vector<at::Tensor> parameters(const torch::nn::Module& module) { return without_names(named_parameters(module)); }
std::vector<at::Tensor> parameters(const torch::jit::Module& module) { return without_names(named_parameters(module)); }

NamedTensors named_parameters(const torch::nn::Module& module) { return hand_out_leaves(named_tensors(module)); }
NamedTensors named_parameters(const torch::jit::Module& module) { return hand_out_leaves(named_tensors(module)); }

std::vector<int64_t> logical_sizes(const at::Tensor& leaf) {
  const auto member = registry::find_leaf(leaf);
  return member ? member->group->sizes(member->index) : leaf.sizes().vec();
}

LocalRange local_range(const at::Tensor& leaf) {
  const auto member = registry::find_leaf(leaf);
  if (!member) return {0, leaf.numel()};
  const layout::Range slice = member->group->main_slice(member->index);
  return {slice.begin, slice.end};
}

int64_t ParameterCut::run() const { return c10::numelements_from_dim(static_cast<int>(dim), sizes) / parts; }

int64_t ParameterCut::num_runs() const { return c10::numelements_to_dim(static_cast<int>(dim), sizes); }

std::optional<ParameterCut> cut_of(const at::Tensor& parameter_or_leaf) {
  const auto cut = registry::find_cut(parameter_or_leaf);
  if (!cut) return std::nullopt;
  return ParameterCut{cut->dim, cut->ranks->rank(), cut->ranks->size(), cut->sizes};
}

std::optional<ParameterPlace> place_of(const at::Tensor& parameter_or_leaf) {
  auto member = registry::find_leaf(parameter_or_leaf);
  if (!member) member = registry::find_parameter(parameter_or_leaf);
  if (!member) return std::nullopt;
  const ParameterGroup& group = *member->group;
  const layout::Range slice = group.main_slice(member->index);
  const Placement placement = group.whole_main_weight() ? Placement::kReplicate : Placement::kShard;
  return ParameterPlace{group.unit_name(),        group.parameter_name(member->index),   placement,
                        {slice.begin, slice.end}, group.layout().offsets[member->index], cut_of(parameter_or_leaf)};
}

std::vector<DecayGroup> decay_groups(const torch::nn::Module& module, double weight_decay) {
  std::vector<DecayGroup> groups(2);
  groups[0].weight_decay = weight_decay;
  for (const at::Tensor& leaf : parameters(module)) {
    groups[logical_sizes(leaf).size() >= 2 ? 0 : 1].parameters.push_back(leaf);
  }
  return groups;
}

std::vector<at::Tensor> leaves_of(const torch::nn::Module& module) {
  const NamedTensors tensors = named_tensors(module);
  check_owned(tensors, owners_of(tensors));
  return without_names(to_leaves(tensors));
}

void enter_library(const std::vector<at::Tensor>& leaves) {
  std::set<std::shared_ptr<GroupOwner>> owners;
  for (const at::Tensor& leaf : leaves) {
    if (const auto member = registry::find_leaf(leaf)) owners.insert(member->group->owner());
  }
  owners.erase(nullptr);
  for (const auto& owner : owners) owner->on_library_entry();
}

void zero_grad(torch::nn::Module& module) { clear_gradients(named_tensors(module)); }
void zero_grad(torch::jit::Module& module) { clear_gradients(named_tensors(module)); }

}  // namespace fsdp
