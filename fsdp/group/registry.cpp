#include "fsdp/group/registry.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/base/tensor_table.h"

namespace fsdp::registry {
namespace {

struct Entry {
  std::weak_ptr<ParameterGroup> group;
  const ParameterGroup* address;
  size_t index;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> entries;
};

Table& leaves() {
  static Table table;
  return table;
}

Table& parameters() {
  static Table table;
  return table;
}

kernels::TensorTable<at::ScalarType>& buffers() {
  static kernels::TensorTable<at::ScalarType> table;
  return table;
}

kernels::TensorTable<std::string>& whole_names() {
  static kernels::TensorTable<std::string> table;
  return table;
}

void add(Table& table, const at::Tensor& tensor, const std::shared_ptr<ParameterGroup>& group, size_t index) {
  const std::lock_guard lock(table.mutex);
  table.entries[tensor.unsafeGetTensorImpl()] = {group, group.get(), index};
}

std::optional<GroupMember> find(Table& table, const at::Tensor& tensor) {
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(tensor.unsafeGetTensorImpl());
  if (found == table.entries.end()) return std::nullopt;
  auto group = found->second.group.lock();
  if (!group) return std::nullopt;
  return GroupMember{std::move(group), found->second.index};
}

void forget(Table& table, const ParameterGroup& group) {
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.entries, [&](const auto& item) { return item.second.address == &group; });
}

}  // namespace

void add_leaf(const at::Tensor& leaf, const std::shared_ptr<ParameterGroup>& group, size_t index) {
  add(leaves(), leaf, group, index);
}

void add_parameter(const at::Tensor& parameter, const std::shared_ptr<ParameterGroup>& group, size_t index) {
  add(parameters(), parameter, group, index);
}

std::optional<GroupMember> find_leaf(const at::Tensor& leaf) { return find(leaves(), leaf); }

std::optional<GroupMember> find_parameter(const at::Tensor& parameter) { return find(parameters(), parameter); }

void forget(const ParameterGroup& group) {
  forget(leaves(), group);
  forget(parameters(), group);
}

void add_buffer(const at::Tensor& buffer, at::ScalarType saved_as) { buffers().add(buffer, saved_as); }

std::optional<at::ScalarType> find_buffer(const at::Tensor& buffer) { return buffers().find(buffer); }

void set_whole_name(const at::Tensor& tensor, const std::string& name) { whole_names().set(tensor, name); }

std::optional<std::string> find_whole_name(const at::Tensor& tensor) { return whole_names().find(tensor); }

}  // namespace fsdp::registry
