#include "fsdp/group/registry.h"

#include <mutex>
#include <unordered_map>
#include <utility>

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

// A tensor that is gone has left its address to another.
struct BufferEntry {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  at::ScalarType saved_as;
};

struct BufferTable {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, BufferEntry> entries;
};

BufferTable& buffers() {
  static BufferTable table;
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

void add_buffer(const at::Tensor& buffer, at::ScalarType saved_as) {
  BufferTable& table = buffers();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.entries, [](const auto& item) { return item.second.tensor.expired(); });
  BufferEntry entry{decltype(BufferEntry::tensor)(buffer.getIntrusivePtr()), saved_as};
  table.entries.try_emplace(buffer.unsafeGetTensorImpl(), std::move(entry));
}

std::optional<at::ScalarType> find_buffer(const at::Tensor& buffer) {
  BufferTable& table = buffers();
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(buffer.unsafeGetTensorImpl());
  if (found == table.entries.end() || found->second.tensor.expired()) return std::nullopt;
  return found->second.saved_as;
}

}  // namespace fsdp::registry
