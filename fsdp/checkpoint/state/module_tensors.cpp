#include "fsdp/checkpoint/state/module_tensors.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/group_owner.h"

namespace fsdp {
namespace {

// A view of a sharded parameter has no memory at rest, and LibTorch would write it out empty.
void check_is_no_view(const ModuleTensor& tensor, const ModuleTensors& module, const std::string& operation) {
  if (tensor.member) return;
  for (const auto& group : module.groups) {
    FSDP_CHECK(!group->holds(*tensor.tensor), "[", operation, "] '", tensor.name,
               "': got a view of a sharded parameter, expected a tensor with memory of its own. Clone it before "
               "fully_shard().");
  }
}

// Others are LibTorch's business altogether.
bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized();
}

class Collector {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!is_plain(tensor) || !seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
    const auto whole_name = registry::find_whole_name(tensor);
    if (!whole_name && first_unnamed_.empty()) first_unnamed_ = name;
    module_.tensors.push_back(
        {whole_name.value_or(name), c10::MaybeOwned<at::Tensor>::borrowed(tensor), registry::find_parameter(tensor)});
    const auto& member = module_.tensors.back().member;
    if (!member || std::find(module_.groups.begin(), module_.groups.end(), member->group) != module_.groups.end()) {
      return;
    }
    module_.groups.push_back(member->group);
  }

  ModuleTensors finish(const std::string& operation) {
    FSDP_CHECK(!module_.groups.empty(), "[", operation, "] module: got no sharded parameter, expected at least one. ",
               "What every rank has whole is written by torch::save() on one rank and read by torch::load().");
    module_.owner = module_.groups.front()->owner();
    for (const auto& group : module_.groups) {
      FSDP_CHECK(module_.owner && group->owner() == module_.owner, "[", operation,
                 "] module: got parameters of several worlds, expected one. Save its parts one by one.");
    }
    FSDP_CHECK(module_.owner->spans_world() || first_unnamed_.empty(), "[", operation, "] '", first_unnamed_,
               "' is of a stage of a pipeline, and nobody said what it is called in the whole model, expected a name. ",
               "Give pipeline::stage_of() the names, as in stage_of(part, root, pipeline::prefixed(\"decoder.\")).");
    check_names(operation);
    for (const ModuleTensor& tensor : module_.tensors) check_is_no_view(tensor, module_, operation);
    return std::move(module_);
  }

 private:
  void check_names(const std::string& operation) const {
    std::unordered_set<std::string> names;
    for (const ModuleTensor& tensor : module_.tensors) {
      FSDP_CHECK(names.insert(tensor.name).second, "[", operation, "] got two tensors of one rank that are called '",
                 tensor.name,
                 "' in the whole model, expected one. Use one tensor in both places, or give other names.");
    }
  }

  ModuleTensors module_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::string first_unnamed_;  // in the whole model; empty: all have a name there
};

}  // namespace

std::vector<int64_t> ModuleTensor::sizes() const {
  if (const auto cut = registry::find_cut(*tensor)) return cut->sizes;
  return member ? member->group->sizes(member->index) : tensor->sizes().vec();
}

at::ScalarType ModuleTensor::dtype() const {
  if (member) return member->group->main_weight().local().scalar_type();
  return registry::find_buffer(*tensor).value_or(tensor->scalar_type());
}

at::Tensor ModuleTensor::saved() const { return tensor->scalar_type() == dtype() ? *tensor : tensor->to(dtype()); }

ModuleTensors tensors_of(const torch::nn::Module& module, const std::string& operation) {
  Collector collector;
  for (const auto& item : module.named_parameters()) collector.add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) collector.add(item.key(), item.value());
  return collector.finish(operation);
}

ModuleTensors tensors_of(const torch::jit::Module& module, const std::string& operation) {
  Collector collector;
  for (const auto& item : module.named_parameters()) collector.add(item.name, item.value);
  for (const auto& item : module.named_buffers()) collector.add(item.name, item.value);
  return collector.finish(operation);
}

}  // namespace fsdp
