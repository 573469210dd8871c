#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/comm/host/host_handshake.h"
#include "fsdp/comm/host/mailbox.h"
#include "fsdp/comm/host/shared_arena.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

struct HostLinksOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(10);  // to reach the others once all have started
  std::chrono::milliseconds start_deadline = std::chrono::minutes(2);
  int64_t arena_bytes = kDefaultArenaBytes;
  JobSecret secret;
};

// What one rank shares with the other ranks of a world whose ranks all run on one host, as processes or as threads: the
// arenas of all, mapped here, and a socket to each, whose end tells of that rank's. Thread-safe. Lives as long as
// somebody uses its memory; peers that still read something of this rank after that keep the memory by themselves.
class HostLinks {
 public:
  using Clock = std::chrono::steady_clock;

  // Null, on every rank, if they do not all run on one host that lets them share memory; `obstacle` is then why, for
  // people. Uses keys of `store` that are not to be used twice. Throws Error(kCommunication) if the store fails.
  // COLLECTIVE.
  static std::shared_ptr<HostLinks> try_connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const HostLinksOptions& options = {}, std::string* obstacle = nullptr);
  ~HostLinks();
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // Cores on which any of the ranks might run when they connected, before a program bound its ranks to some of them.
  int num_cores() const;
  const std::shared_ptr<SharedArena>& own_arena() const { return own_; }
  // Where the arena of `rank` begins in this process.
  std::byte* arena(int rank) const;
  ControlBlock& control(int rank) const;
  // `bytes` at `offset` of it; null if they are not all of it.
  const std::byte* find_in_arena(int rank, int64_t offset, int64_t bytes) const;
  Outbox& outbox() { return outbox_; }

  // A number for a group that is made: not zero, the same on its ranks, another for each group.
  uint32_t new_group_id(const std::vector<int>& ranks);

  // What is waited for: returns a bit for each of the `peers` that is missing, by index; 0: come true. It is called
  // often, by the thread that waits.
  using Condition = std::function<uint64_t()>;
  struct Wait {
    const std::vector<int>& peers;  // global ranks
    const std::atomic<bool>* aborted = nullptr;
  };
  // Returns when `missing` has come true. Throws TransferFailure with the index of a missing peer: kPeerClosed,
  // kDeadline after `deadline`, kOther when aborted.
  void wait(const Condition& missing, const Wait& who, std::chrono::milliseconds deadline);
  // The same, but returns false at `until`.
  bool wait_until(const Condition& missing, const Wait& who, Clock::time_point until);

  // Wakes what waits on `rank` for this rank. Call it after each change that peers may wait for.
  void ring(int rank);
  // Wakes all threads that wait here.
  void ring_self();

 private:
  HostLinks(int rank, std::shared_ptr<SharedArena> own, std::vector<HostPeer> peers);
  bool spin(const Condition& missing);
  bool sleep(const Condition& missing, const Wait& who, Clock::time_point until);
  void check_peers(const Condition& missing, const std::vector<int>& peers) const;

  int rank_;
  std::shared_ptr<SharedArena> own_;
  std::vector<HostPeer> peers_;
  Outbox outbox_;
  bool may_spin_;  // there is a core for each rank
  std::atomic<int64_t> spin_ns_{0};
  std::atomic<uint32_t> waits_{0};
  std::mutex mutex_;
  std::map<std::vector<int>, uint32_t> groups_made_;
};

}  // namespace fsdp::comm
