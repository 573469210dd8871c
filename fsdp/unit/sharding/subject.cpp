#include "fsdp/unit/sharding/subject.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/base/load_cuda.h"
#include "fsdp/deferred/deferred_init.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"

namespace fsdp {
namespace {

std::optional<ModuleKind> kind_of(const torch::nn::Module& module) {
  using namespace torch::nn;
  const auto is = [&]<class... Kinds>() { return (... || (dynamic_cast<const Kinds*>(&module) != nullptr)); };
  if (is.template operator()<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl>()) return ModuleKind::kBatchNorm;
  if (is.template operator()<InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl>()) {
    return ModuleKind::kInstanceNorm;
  }
  if (is.template operator()<GroupNormImpl>()) return ModuleKind::kGroupNorm;
  if (is.template operator()<LayerNormImpl>()) return ModuleKind::kLayerNorm;
  return std::nullopt;
}

std::optional<ModuleKind> kind_of(const torch::jit::Module& module) {
  const std::string name = module.type()->name() ? module.type()->name()->name() : "";
  if (name.starts_with("BatchNorm") || name.starts_with("SyncBatchNorm")) return ModuleKind::kBatchNorm;
  if (name.starts_with("InstanceNorm")) return ModuleKind::kInstanceNorm;
  if (name.starts_with("GroupNorm")) return ModuleKind::kGroupNorm;
  if (name.starts_with("LayerNorm")) return ModuleKind::kLayerNorm;
  return std::nullopt;
}

using Kinds = std::unordered_map<const c10::TensorImpl*, ModuleKind>;

template <class Module>
void note_kind(Kinds& kinds, const Module& module) {
  const auto kind = kind_of(module);
  if (!kind) return;
  for (const at::Tensor& tensor : module.parameters(/*recurse=*/false)) {
    kinds.emplace(tensor.unsafeGetTensorImpl(), *kind);
  }
  for (const at::Tensor& tensor : module.buffers(/*recurse=*/false)) {
    kinds.emplace(tensor.unsafeGetTensorImpl(), *kind);
  }
}

std::optional<ModuleKind> find_kind(const Kinds& kinds, const at::Tensor& tensor) {
  const auto found = kinds.find(tensor.unsafeGetTensorImpl());
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

void add_module(Subject& subject, const torch::nn::Module& module, const std::string& prefix) {
  Kinds kinds;
  note_kind(kinds, module);
  for (const auto& inner : module.modules(/*include_self=*/false)) note_kind(kinds, *inner);
  for (const auto& item : module.named_parameters()) {
    subject.parameters.push_back({prefix + item.key(), item.value(), find_kind(kinds, item.value())});
  }
  for (const at::Tensor& buffer : module.buffers()) subject.buffers.push_back({buffer, find_kind(kinds, buffer)});
  subject.modules.push_back(&module);
}

void check_parameter(const SubjectParameter& parameter, const ShardOptions& options, c10::Device device) {
  const at::Tensor& tensor = parameter.tensor;
  FSDP_CHECK(tensor.defined(), "[fully_shard] '", parameter.name, "' is undefined. Initialise it first.");
  const bool may_be_on_cpu = device.is_cpu() || options.device.has_value();
  FSDP_CHECK(tensor.device() == device || (tensor.is_cpu() && may_be_on_cpu), "[fully_shard] '", parameter.name,
             "': got device ", tensor.device(), ", expected ", device,
             ". All weights of a world are on one device: move the model there first, or set ShardOptions::device.");
  const at::ScalarType dtype = tensor.scalar_type();
  FSDP_CHECK(at::isFloatingType(dtype) || dtype == at::kByte, "[fully_shard] '", parameter.name, "': got dtype ", dtype,
             ", expected a floating-point type, or bytes. List it in ShardOptions::ignored_parameters.");
  FSDP_CHECK(tensor.is_leaf(), "[fully_shard] '", parameter.name,
             "' is computed from other tensors. Shard leaves only.");
  FSDP_CHECK(tensor.is_non_overlapping_and_dense(), "[fully_shard] '", parameter.name, "': got strides ",
             tensor.strides(), " for sizes ", tensor.sizes(),
             ", expected a memory place for each element and none between them. Call contiguous() before registering "
             "it.");
}

// Bytes of a storage that a parameter lies in.
struct ClaimedRange {
  int64_t begin;
  int64_t end;
  std::string name;
};
using ClaimedMemory = std::unordered_map<const c10::StorageImpl*, std::vector<ClaimedRange>>;

// Two tensors over one memory would each have values of their own from now on.
void claim_memory(ClaimedMemory& claimed, const SubjectParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const int64_t begin = tensor.storage_offset() * tensor.element_size();
  const int64_t end = begin + static_cast<int64_t>(tensor.nbytes());
  std::vector<ClaimedRange>& others = claimed[tensor.storage().unsafeGetStorageImpl()];
  for (const ClaimedRange& other : others) {
    FSDP_CHECK(end <= other.begin || other.end <= begin, "[fully_shard] '", parameter.name, "' shares memory with '",
               other.name,
               "' but is another tensor: sharded, each would have values of its own. Register one tensor under both "
               "names and view it in forward, or list both in ShardOptions::ignored_parameters.");
  }
  others.push_back({begin, end, parameter.name});
}

}  // namespace

std::vector<at::Tensor> buffers_of(const Subject& subject) {
  std::vector<at::Tensor> buffers;
  for (const SubjectBuffer& buffer : subject.buffers) buffers.push_back(buffer.tensor);
  return buffers;
}

Subject subject_of(const torch::nn::Module& module) {
  Subject subject;
  add_module(subject, module, "");
  return subject;
}

Subject subject_of(const std::vector<torch::nn::Module*>& modules) {
  FSDP_CHECK(!modules.empty(), "[fully_shard] got an empty list of modules, expected at least one.");
  Subject subject;
  for (size_t i = 0; i < modules.size(); ++i) {
    FSDP_CHECK(modules[i] != nullptr, "[fully_shard] module ", i, " of the list is null.");
    for (const auto& inner : modules[i]->modules(/*include_self=*/false)) {
      const auto found = std::find(modules.begin(), modules.end(), inner.get());
      FSDP_CHECK(found == modules.end(), "[fully_shard] module ", found - modules.begin(),
                 " of the list lies in module ", i, ". List modules that do not contain each other.");
    }
    add_module(subject, *modules[i], std::to_string(i) + ".");
  }
  return subject;
}

Subject subject_of(const torch::jit::Module& module) {
  Subject subject;
  Kinds kinds;
  for (const torch::jit::Module& inner : module.modules()) note_kind(kinds, inner);
  for (const auto& item : module.named_parameters()) {
    subject.parameters.push_back({item.name, item.value, find_kind(kinds, item.value)});
  }
  for (const at::Tensor& buffer : module.buffers()) subject.buffers.push_back({buffer, find_kind(kinds, buffer)});
  subject.modules.push_back(module._ivalue().get());
  FSDP_CHECK(!subject.parameters.empty(),
             "[fully_shard] the TorchScript module has no parameters. A frozen module has turned them into ",
             "constants; save it without torch.jit.freeze.");
  return subject;
}

bool materialize_subject(const Subject& subject) {
  std::vector<at::Tensor> tensors = buffers_of(subject);
  for (const SubjectParameter& parameter : subject.parameters) tensors.push_back(parameter.tensor);
  if (std::none_of(tensors.begin(), tensors.end(), is_deferred)) return false;
  materialize(tensors);
  return true;
}

void cast_buffers(const Subject& subject, const Precision& precision) {
  const std::vector<ModuleKind>& kept = precision.keep_fp32;
  for (const auto& [buffer, kind] : subject.buffers) {
    if (!buffer.defined() || !at::isFloatingType(buffer.scalar_type()) || registry::find_buffer(buffer)) continue;
    registry::add_buffer(buffer, buffer.scalar_type());
    const bool stays = kind && std::find(kept.begin(), kept.end(), *kind) != kept.end();
    if (stays || !precision.buffers || *precision.buffers == buffer.scalar_type()) continue;
    at::Tensor(buffer).set_data(buffer.detach().to(*precision.buffers));
  }
}

c10::Device device_of(const Subject& subject, const ShardOptions& options) {
  std::optional<c10::Device> device = options.device;
  for (const SubjectParameter& parameter : subject.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (!device && tensor.defined()) device = is_deferred(tensor) ? c10::Device(c10::kCPU) : tensor.device();
  }
  if (!device || device->is_cpu() || device->is_meta()) return c10::kCPU;
  if (device->is_cuda()) load_cuda();
  return device->has_index() ? *device : c10::impl::VirtualGuardImpl(device->type()).getDevice();
}

SubjectParameters unowned_parameters(const SubjectParameters& all, const ShardOptions& options, c10::Device device) {
  std::unordered_set<const c10::TensorImpl*> skip;
  for (const at::Tensor& tensor : options.ignored_parameters) skip.insert(tensor.unsafeGetTensorImpl());
  ClaimedMemory claimed;
  SubjectParameters list;
  for (const SubjectParameter& parameter : all) {
    if (parameter.tensor.defined() && !skip.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    if (parameter.tensor.defined() && registry::find_parameter(parameter.tensor)) continue;
    check_parameter(parameter, options, device);
    claim_memory(claimed, parameter);
    if (!parameter.tensor.is_contiguous()) at::Tensor(parameter.tensor).set_data(parameter.tensor.contiguous());
    list.push_back(parameter);
  }
  return list;
}

}  // namespace fsdp
