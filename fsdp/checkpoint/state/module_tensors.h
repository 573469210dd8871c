#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace fsdp {

// A parameter or buffer: strided and not quantized. Valid as long as the module has it; not counted as a reference to
// the tensor, because LibTorch writes a tensor that has several otherwise than one that has one.
struct ModuleTensor {
  std::string name;  // in the whole model, where this one is a stage of it that was given names
  c10::MaybeOwned<at::Tensor> tensor;
  std::optional<GroupMember> member;  // what it is in its group; nothing if it is not sharded

  // As an unsharded model has it.
  std::vector<int64_t> sizes() const;
  at::ScalarType dtype() const;
  // For a tensor that is not sharded: itself, or its values in dtype() where Precision::buffers gave it another.
  at::Tensor saved() const;
};

// What a module consists of, the same on every rank; of a stage of a pipeline, on every rank of that stage.
struct ModuleTensors {
  std::vector<ModuleTensor> tensors;                    // each once, under its first name; parameters, then buffers
  std::vector<std::shared_ptr<ParameterGroup>> groups;  // in the order of their first parameter
  std::shared_ptr<GroupOwner> owner;
};

// Throws Error(kUsage), naming `operation`, if nothing of the module is sharded, or it is by several worlds, or if
// it is a stage of a pipeline whose tensors have no names in the whole model. Local.
ModuleTensors tensors_of(const torch::nn::Module& module, const std::string& operation);
ModuleTensors tensors_of(const torch::jit::Module& module, const std::string& operation);

}  // namespace fsdp
