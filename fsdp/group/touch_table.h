#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace fsdp {

class ParameterGroup;
class UnitState;

// What of a group a storage is.
enum class Role : uint8_t { kUnsharded, kMainWeight, kMainGrad, kGradientMark };

// From a storage to the group of which it is a part. Read by every operator of the process, so
// reads take no lock: open addressing with atomic slots; a full table is replaced by a larger one and kept until the
// process ends, because a reader may still be in it. Writers are serialised.
class TouchTable {
 public:
  struct Entry {
    ParameterGroup* group = nullptr;
    UnitState* unit = nullptr;
    Role role = Role::kUnsharded;
  };

  static TouchTable& instance();

  void add(const c10::StorageImpl* storage, const Entry& entry);
  // Nothing where the address has come to be another group's meanwhile.
  void remove(const c10::StorageImpl* storage, const ParameterGroup* group);
  // Without a group for a storage that is none of ours.
  Entry find(const c10::StorageImpl* storage) const;

 private:
  struct Slot {
    std::atomic<const c10::StorageImpl*> storage{nullptr};
    std::atomic<ParameterGroup*> group{nullptr};
    std::atomic<UnitState*> unit{nullptr};
    std::atomic<Role> role{Role::kUnsharded};
  };
  struct Slots {
    explicit Slots(size_t size) : mask(size - 1), slots(size) {}
    size_t mask;
    std::vector<Slot> slots;
  };

  TouchTable();
  static size_t hash(const c10::StorageImpl* storage);
  static void insert(Slots& slots, const c10::StorageImpl* storage, const Entry& entry);

  std::mutex write_mutex_;
  std::vector<std::unique_ptr<Slots>> tables_;
  std::atomic<Slots*> current_;
  size_t used_ = 0;
};

}  // namespace fsdp
