// What a rank tells the other ranks of its host, in the first pages of its arena: where the data of its calls lies.
//
// One rank, the poster, writes a slot; the others of the group read it, each once. A slot goes through these hands:
//   - The poster fills it and then publishes its key; who finds the key (acquire) sees what stood before (release).
//   - A reader enters by adding itself to the slot's door, which fails while the slot is free or closed. State and
//     readers share that one word, so a poster closes a slot only while nobody is inside, and whoever enters afterwards
//     sees the new place of the data.
//   - A reader that is done sets its bit (release) and then leaves. A poster that finds all bits set (acquire) may
//     reuse the memory they read; it frees the slot once the door is empty too.
//   - A key is freed after its door is. So a reader that follows an old key into a slot that was filled again meets a
//     closed door, or a new one that shows it the new group.
// Two ranks that tell each other something at once ("I leave" and "I posted"; "tell me" and "I am done") each write
// first and read then; sequentially consistent accesses there let at least one of them see the other's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "fsdp/comm/host/shared_arena.h"

namespace fsdp::comm {

inline constexpr int kMaxHostRanks = 64;  // each has a bit
inline constexpr int kSlots = 256;
inline constexpr int64_t kInlineBytes = 4096;

enum class SlotState : uint32_t {
  kFree,
  kPosted,
  kLeft,     // as posted, but its poster does not want what the others post any more
  kClosed,   // the data moves; come again
  kGivenUp,  // the poster left and took the data along
};

struct alignas(64) Slot {
  std::atomic<uint64_t> door{0};          // SlotState in the upper half, the number of readers inside in the lower
  std::atomic<uint64_t> readers_done{0};  // global ranks
  std::atomic<bool> is_awaited{false};    // the poster waits for readers
  uint64_t group = 0;                     // global ranks
  int64_t offset = 0;                     // of the data, from the start of the poster's arena
  int64_t bytes = 0;
  alignas(64) std::byte inline_data[kInlineBytes];
};

inline constexpr int kCoreWords = 16;

struct ControlBlock {
  uint64_t token = 0;            // random: who finds it has mapped the right memory
  uint64_t cores[kCoreWords]{};  // a bit for each on which the rank may run
  alignas(64) std::atomic<uint32_t> bell{0};
  std::atomic<uint64_t> rung_by{0};                  // global ranks whose ringing shall wake a sleeper
  alignas(64) std::atomic<uint32_t> strays{0};       // slots that lie outside of the line of their key
  alignas(64) std::atomic<uint64_t> keys[kSlots]{};  // 0: free
  Slot slots[kSlots];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline uint64_t bit_of(int rank) { return uint64_t{1} << rank; }

// A slot that a reader has entered.
struct Entry {
  Slot* slot = nullptr;  // null: there is none, yet
  SlotState state = SlotState::kFree;
};

// Enters what this rank's peer posted under `key` to `group`, unless `reader` is done with it.
Entry enter_slot(ControlBlock& poster, uint64_t key, uint64_t group, int reader);
// Whether the data stood still since enter_slot(); else what was read is worthless.
bool is_intact(const Entry& entry);
// The reader is done, for good. Returns whether the poster waits to be told.
bool leave_slot(const Entry& entry, int reader);

struct Message {
  uint64_t key = 0;
  uint64_t group = 0;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  // A part that nobody reads.
  int64_t hole_begin = 0;
  int64_t hole_bytes = 0;
};

// The poster's side. Thread-safe.
class Outbox {
 public:
  // The control block lies at the start of the arena.
  Outbox(SharedArena& arena, int rank);

  // Posts small data by value, data of the arena by its place, other data as a copy in the arena. Returns the slot, or
  // nothing while all are in use or one with this key waits for readers. Throws Error(kMemory).
  std::optional<int> try_post(const Message& message);
  // Whether readers use the caller's memory.
  bool is_borrowed(int slot) const;
  // Global ranks that have not read it.
  uint64_t unread(int slot) const;
  // Those that have not read all that was posted to them.
  uint64_t unread_by_any();
  // Asks readers to ring this rank when they are done: with this slot, or with any.
  void await_readers(int slot);
  void await_any();
  // `reader` will not come.
  void excuse(int slot, int reader);
  // Copies borrowed data, so that the caller may reuse its memory; false if that cannot be done just now.
  bool detach(int slot);
  // The caller wants no answer any more. Borrowed data is not to be had any more.
  void leave(int slot);
  bool has_reader_inside(int slot) const;
  // The slot, which is not borrowed or read by all, is freed when the last reader has left.
  void retire(int slot);

 private:
  struct Local {
    Message message;
    void* copy = nullptr;  // in the arena
    bool is_borrowed = false;
  };
  int vacant(const Message& message) const;
  void place(int slot, const Message& message);
  void copy_to(void* destination, const Message& message) const;
  void free_read();

  SharedArena& arena_;
  ControlBlock& control_;
  uint64_t self_;
  std::mutex mutex_;
  std::vector<uint64_t> keys_;  // 0: free
  std::vector<Local> local_;
  std::vector<int> retired_;
};

}  // namespace fsdp::comm
