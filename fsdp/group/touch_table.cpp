#include "fsdp/group/touch_table.h"

#include <algorithm>

namespace fsdp {
namespace {
constexpr size_t kInitialSize = 256;
}  // namespace

TouchTable& TouchTable::instance() {
  static TouchTable table;
  return table;
}

TouchTable::TouchTable() : current_(nullptr) {
  tables_.push_back(std::make_unique<Slots>(kInitialSize));
  current_.store(tables_.back().get(), std::memory_order_release);
}

size_t TouchTable::hash(const c10::StorageImpl* storage) {
  return static_cast<size_t>((reinterpret_cast<uintptr_t>(storage) >> 4) * 0x9E3779B97F4A7C15ULL >> 32);
}

void TouchTable::insert(Slots& slots, const c10::StorageImpl* storage, const Entry& entry) {
  for (size_t i = hash(storage);; ++i) {
    Slot& slot = slots.slots[i & slots.mask];
    const c10::StorageImpl* present = slot.storage.load(std::memory_order_relaxed);
    if (present != nullptr && present != storage) continue;
    slot.group.store(entry.group, std::memory_order_relaxed);
    slot.unit.store(entry.unit, std::memory_order_relaxed);
    slot.role.store(entry.role, std::memory_order_relaxed);
    slot.storage.store(storage, std::memory_order_release);
    return;
  }
}

void TouchTable::add(const c10::StorageImpl* storage, const Entry& entry) {
  const std::lock_guard lock(write_mutex_);
  if (2 * (used_ + 1) > tables_.back()->slots.size()) {
    const auto is_live = [](const Slot& slot) { return slot.group.load(std::memory_order_relaxed) != nullptr; };
    const std::vector<Slot>& full = tables_.back()->slots;
    const auto live = static_cast<size_t>(std::count_if(full.begin(), full.end(), is_live));
    auto larger = std::make_unique<Slots>(4 * live > full.size() ? 2 * full.size() : full.size());
    used_ = 0;
    for (const Slot& slot : full) {
      if (!is_live(slot)) continue;
      insert(*larger, slot.storage.load(std::memory_order_relaxed),
             {slot.group.load(std::memory_order_relaxed), slot.unit.load(std::memory_order_relaxed),
              slot.role.load(std::memory_order_relaxed)});
      ++used_;
    }
    tables_.push_back(std::move(larger));
  }
  // Counted even where the address is known already: growing early is harmless, a full table would be searched for
  // ever.
  insert(*tables_.back(), storage, entry);
  ++used_;
  current_.store(tables_.back().get(), std::memory_order_release);
}

void TouchTable::remove(const c10::StorageImpl* storage, const ParameterGroup* group) {
  const std::lock_guard lock(write_mutex_);
  // The slot keeps its key: a chain of probes may run through it, and the address may come back. An address that was
  // never added must not take a slot.
  if (group != nullptr && find(storage).group == group) insert(*tables_.back(), storage, {});
}

TouchTable::Entry TouchTable::find(const c10::StorageImpl* storage) const {
  const Slots& slots = *current_.load(std::memory_order_acquire);
  for (size_t i = hash(storage);; ++i) {
    const Slot& slot = slots.slots[i & slots.mask];
    const c10::StorageImpl* present = slot.storage.load(std::memory_order_acquire);
    if (present == storage) {
      return {slot.group.load(std::memory_order_relaxed), slot.unit.load(std::memory_order_relaxed),
              slot.role.load(std::memory_order_relaxed)};
    }
    if (present == nullptr) return {};
  }
}

}  // namespace fsdp
