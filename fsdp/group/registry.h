#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

namespace fsdp {

class ParameterGroup;

// Where a tensor belongs: parameter `index` of `group`.
struct GroupMember {
  std::shared_ptr<ParameterGroup> group;
  size_t index = 0;
};

// Process-wide lookup from tensors to groups, for calls that get tensors or modules from the program. Thread-safe;
// holds no group alive.
namespace registry {

void add_leaf(const at::Tensor& leaf, const std::shared_ptr<ParameterGroup>& group, size_t index);
void add_parameter(const at::Tensor& parameter, const std::shared_ptr<ParameterGroup>& group, size_t index);
std::optional<GroupMember> find_leaf(const at::Tensor& leaf);
std::optional<GroupMember> find_parameter(const at::Tensor& parameter);
void forget(const ParameterGroup& group);

// Buffers of modules that were sharded, and the dtype they had before. The first call for one counts.
void add_buffer(const at::Tensor& buffer, at::ScalarType saved_as);
std::optional<at::ScalarType> find_buffer(const at::Tensor& buffer);

// What a parameter or buffer is called in the whole model, where this rank has a stage of it (fsdp/pipeline/naming.h).
// The last call for one counts.
void set_whole_name(const at::Tensor& tensor, const std::string& name);
std::optional<std::string> find_whole_name(const at::Tensor& tensor);

}  // namespace registry
}  // namespace fsdp
