#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

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

}  // namespace registry
}  // namespace fsdp
