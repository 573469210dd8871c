#include "fsdp/comm/host/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/base/error.h"

namespace fsdp::comm {
namespace {

// Slots whose keys share a cache line: a reader that waits looks at that line alone.
constexpr int kSlotsInLine = 8;
constexpr uint64_t kReadersMask = 0xffffffffU;

uint64_t door_of(SlotState state) { return static_cast<uint64_t>(state) << 32; }
SlotState state_of(uint64_t door) { return static_cast<SlotState>(door >> 32); }

int first_slot_of(uint64_t key) {
  constexpr uint64_t kLines = kSlots / kSlotsInLine;
  return static_cast<int>((key * 0x9E3779B97F4A7C15U >> 32) % kLines) * kSlotsInLine;
}

Entry try_enter(ControlBlock& poster, int index, uint64_t key, uint64_t group, int reader) {
  if (poster.keys[index].load() != key) return {};
  Slot& slot = poster.slots[index];
  if (slot.readers_done.load() & bit_of(reader)) return {};
  uint64_t door = slot.door.load();
  do {
    const SlotState state = state_of(door);
    if (state == SlotState::kFree || state == SlotState::kClosed) return {};
  } while (!slot.door.compare_exchange_weak(door, door + 1));
  if (poster.keys[index].load() == key && slot.group == group && !(slot.readers_done.load() & bit_of(reader))) {
    return {&slot, state_of(door)};
  }
  slot.door.fetch_sub(1);
  return {};
}

}  // namespace

Entry enter_slot(ControlBlock& poster, uint64_t key, uint64_t group, int reader) {
  const int first = first_slot_of(key);
  for (int index = first; index < first + kSlotsInLine; ++index) {
    const Entry entry = try_enter(poster, index, key, group, reader);
    if (entry.slot != nullptr) return entry;
  }
  if (poster.strays.load() == 0) return {};
  for (int index = 0; index < kSlots; ++index) {
    const Entry entry = try_enter(poster, index, key, group, reader);
    if (entry.slot != nullptr) return entry;
  }
  return {};
}

bool is_intact(const Entry& entry) { return state_of(entry.slot->door.load()) != SlotState::kGivenUp; }

bool leave_slot(const Entry& entry, int reader) {
  entry.slot->readers_done.fetch_or(bit_of(reader));
  entry.slot->door.fetch_sub(1);
  return entry.slot->is_awaited.load();
}

Outbox::Outbox(SharedArena& arena, int rank)
    : arena_(arena),
      control_(*reinterpret_cast<ControlBlock*>(arena.base())),
      self_(bit_of(rank)),
      keys_(kSlots),
      local_(kSlots) {}

std::optional<int> Outbox::try_post(const Message& message) {
  int index = -1;
  {
    const std::lock_guard lock(mutex_);
    free_read();
    index = vacant(message);
    if (index < 0) return std::nullopt;
    keys_[static_cast<size_t>(index)] = message.key;
    local_[static_cast<size_t>(index)] = {message, nullptr, false};
  }
  Slot& slot = control_.slots[index];
  try {
    place(index, message);
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    keys_[static_cast<size_t>(index)] = 0;
    throw;
  }
  slot.group = message.group;
  slot.bytes = message.bytes;
  slot.is_awaited.store(false);
  slot.readers_done.store(self_);
  if (index / kSlotsInLine * kSlotsInLine != first_slot_of(message.key)) control_.strays.fetch_add(1);
  slot.door.store(door_of(SlotState::kPosted));
  control_.keys[index].store(message.key);
  return index;
}

// A slot near its key if there is one; -1 if there is none or a slot with this key is not read yet.
int Outbox::vacant(const Message& message) const {
  int found = -1;
  const int first = first_slot_of(message.key);
  for (int step = 0; step < kSlots; ++step) {
    const int index = (first + step) % kSlots;
    const uint64_t key = keys_[static_cast<size_t>(index)];
    if (key == 0 && found < 0) found = index;
    if (key == message.key && local_[static_cast<size_t>(index)].message.group == message.group) return -1;
  }
  return found;
}

void Outbox::place(int index, const Message& message) {
  Slot& slot = control_.slots[index];
  Local& local = local_[static_cast<size_t>(index)];
  if (message.bytes <= kInlineBytes) {
    copy_to(slot.inline_data, message);
    slot.offset = arena_.offset_of(slot.inline_data);
  } else if (arena_.contains(message.data, message.bytes)) {
    local.is_borrowed = true;
    slot.offset = arena_.offset_of(message.data);
  } else {
    local.copy = arena_.take(message.bytes);
    copy_to(local.copy, message);
    slot.offset = arena_.offset_of(local.copy);
  }
}

void Outbox::copy_to(void* destination, const Message& message) const {
  auto* to = static_cast<std::byte*>(destination);
  std::memcpy(to, message.data, static_cast<size_t>(message.hole_begin));
  const int64_t rest = message.hole_begin + message.hole_bytes;
  std::memcpy(to + rest, message.data + rest, static_cast<size_t>(message.bytes - rest));
}

bool Outbox::is_borrowed(int index) const { return local_[static_cast<size_t>(index)].is_borrowed; }

uint64_t Outbox::unread(int index) const {
  const Slot& slot = control_.slots[index];
  return slot.group & ~slot.readers_done.load();
}

uint64_t Outbox::unread_by_any() {
  const std::lock_guard lock(mutex_);
  uint64_t late = 0;
  for (const int index : retired_) late |= unread(index);
  return late;
}

void Outbox::await_readers(int index) { control_.slots[index].is_awaited.store(true); }

void Outbox::await_any() {
  for (Slot& slot : control_.slots) slot.is_awaited.store(true);
}

void Outbox::excuse(int index, int reader) { control_.slots[index].readers_done.fetch_or(bit_of(reader)); }

bool Outbox::detach(int index) {
  Slot& slot = control_.slots[index];
  Local& local = local_[static_cast<size_t>(index)];
  void* copy = nullptr;
  try {
    copy = arena_.take(local.message.bytes);
  } catch (const Error&) {
    return false;
  }
  uint64_t open = door_of(SlotState::kPosted);
  if (!slot.door.compare_exchange_strong(open, door_of(SlotState::kClosed))) {
    arena_.give_back(copy, local.message.bytes, SharedArena::Keep::kPages);
    return false;
  }
  copy_to(copy, local.message);
  local.copy = copy;
  local.is_borrowed = false;
  slot.offset = arena_.offset_of(copy);
  slot.door.store(door_of(SlotState::kPosted));
  return true;
}

void Outbox::leave(int index) {
  const SlotState state = is_borrowed(index) ? SlotState::kGivenUp : SlotState::kLeft;
  control_.slots[index].door.fetch_add(door_of(state) - door_of(SlotState::kPosted));
}

bool Outbox::has_reader_inside(int index) const { return (control_.slots[index].door.load() & kReadersMask) != 0; }

void Outbox::retire(int index) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(index);
  free_read();
}

void Outbox::free_read() {
  const auto is_freed = [this](int index) {
    Slot& slot = control_.slots[index];
    if (unread(index) != 0) return false;
    uint64_t door = slot.door.load();
    if ((door & kReadersMask) != 0 || !slot.door.compare_exchange_strong(door, door_of(SlotState::kFree))) return false;
    Local& local = local_[static_cast<size_t>(index)];
    control_.keys[index].store(0);
    if (index / kSlotsInLine * kSlotsInLine != first_slot_of(local.message.key)) control_.strays.fetch_sub(1);
    if (local.copy != nullptr) arena_.give_back(local.copy, local.message.bytes, SharedArena::Keep::kPages);
    keys_[static_cast<size_t>(index)] = 0;
    return true;
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), is_freed), retired_.end());
}

}  // namespace fsdp::comm
