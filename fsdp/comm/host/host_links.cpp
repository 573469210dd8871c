#include "fsdp/comm/host/host_links.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <new>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/lack_of_memory.h"

namespace fsdp::comm {
namespace {

using Clock = HostLinks::Clock;
using std::chrono::nanoseconds;

// A sleeper is back five microseconds after it is woken, on a virtual machine fifty and more. Who is that close is not
// worth a sleep.
constexpr nanoseconds kLongestSpin = std::chrono::microseconds(100);
constexpr nanoseconds kShortestSpin = std::chrono::microseconds(1);
constexpr int kLooksPerClock = 16;
constexpr uint32_t kWaitsPerTry = 32;
// A sleeper looks up this often whether its peers still live.
constexpr std::chrono::milliseconds kNap{50};

// On systems with more cores than there are bits, the first count.
void find_cores(ControlBlock& control) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  for (int core = 0; core < 64 * kCoreWords; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) control.cores[core / 64] |= bit_of(core % 64);
  }
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool look_until(const HostLinks::Condition& missing, Clock::time_point until) {
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (missing() == 0) return true;
      relax();
    }
  } while (Clock::now() < until);
  return false;
}

// Other processes wait on the same word, so these are not the private kind.
void sleep_on(std::atomic<uint32_t>& word, uint32_t value, nanoseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{static_cast<time_t>(seconds.count()), static_cast<long>((at_most - seconds).count())};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Null where there is none, and `reason` says why.
std::shared_ptr<SharedArena> try_make_arena(int64_t bytes, std::string& reason) {
  try {
    auto arena = std::make_shared<SharedArena>(bytes, static_cast<int64_t>(sizeof(ControlBlock)));
    auto* control = new (arena->base()) ControlBlock;
    if (getrandom(&control->token, sizeof(control->token), 0) == sizeof(control->token)) {
      find_cores(*control);
      return arena;
    }
    reason = "the system gives no random numbers";
  } catch (const Error& error) {
    reason = error.what();
    while (reason.ends_with('.')) reason.pop_back();  // it becomes a part of a sentence
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<HostLinks> HostLinks::try_connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const HostLinksOptions& options, std::string* obstacle) {
  FSDP_ASSERT(rank >= 0 && rank < size, rank, " of ", size);
  std::string unheard;
  std::string& why = obstacle != nullptr ? *obstacle : unheard;
  if (size > kMaxHostRanks) {
    why = c10::str(size, " ranks are on one host, and at most ", kMaxHostRanks, " share memory");
    return nullptr;
  }
  HandshakeOptions handshake{options.start_deadline, options.deadline, options.secret, ""};
  auto arena = try_make_arena(options.arena_bytes, handshake.no_arena);
  try {
    HandshakeOutcome outcome = shake_hands(*store, rank, size, arena.get(), handshake);
    why = std::move(outcome.obstacle);
    if (!outcome.peers) return nullptr;
    return std::shared_ptr<HostLinks>(new HostLinks(rank, std::move(arena), std::move(*outcome.peers)));
  } catch (const std::exception& error) {
    if (is_lack_of_memory(error)) throw;
    FSDP_THROW(kCommunication, "[init] rank ", rank, " cannot ask the store who shares its host: ", error.what());
  }
}

HostLinks::HostLinks(int rank, std::shared_ptr<SharedArena> own, std::vector<HostPeer> peers)
    : rank_(rank),
      own_(std::move(own)),
      peers_(std::move(peers)),
      outbox_(*own_, rank),
      may_spin_(size() <= num_cores()) {}

HostLinks::~HostLinks() = default;

// Launchers may give each rank cores of its own.
int HostLinks::num_cores() const {
  int count = 0;
  for (int word = 0; word < kCoreWords; ++word) {
    uint64_t cores = 0;
    for (int rank = 0; rank < size(); ++rank) cores |= control(rank).cores[word];
    count += std::popcount(cores);
  }
  return count;
}

std::byte* HostLinks::arena(int rank) const {
  return rank == rank_ ? own_->base() : peers_[static_cast<size_t>(rank)].arena.base();
}

const std::byte* HostLinks::find_in_arena(int rank, int64_t offset, int64_t bytes) const {
  const int64_t size = rank == rank_ ? own_->size() : peers_[static_cast<size_t>(rank)].arena.size();
  const bool is_inside = offset >= 0 && bytes >= 0 && bytes <= size && offset <= size - bytes;
  return is_inside ? arena(rank) + offset : nullptr;
}

ControlBlock& HostLinks::control(int rank) const { return *reinterpret_cast<ControlBlock*>(arena(rank)); }

uint32_t HostLinks::new_group_id(const std::vector<int>& ranks) {
  uint32_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = ++groups_made_[ranks];
  }
  uint32_t hash = 2166136261U;
  for (const int rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank)) * 16777619U;
  hash = (hash ^ count) * 16777619U;
  return std::max(hash, 1U);
}

void HostLinks::wait(const Condition& missing, const Wait& who, std::chrono::milliseconds deadline) {
  if (wait_until(missing, who, Clock::now() + deadline)) return;
  const uint64_t left = missing();
  if (left == 0) return;
  throw TransferFailure(TransferFailure::Kind::kDeadline, std::countr_zero(left),
                        c10::str("nothing came within ", deadline.count(), " ms"));
}

bool HostLinks::wait_until(const Condition& missing, const Wait& who, Clock::time_point until) {
  if (missing() == 0) return true;
  return spin(missing) || sleep(missing, who, until);
}

// Spinning helps while peers run on cores of their own. Where it did not, it is cut short, but for a try now and then.
bool HostLinks::spin(const Condition& missing) {
  if (!may_spin_) return false;
  const bool tries = waits_.fetch_add(1, std::memory_order_relaxed) % kWaitsPerTry == 0;
  const nanoseconds learnt(spin_ns_.load(std::memory_order_relaxed));
  const bool came = look_until(missing, Clock::now() + (tries ? kLongestSpin : learnt));
  const nanoseconds next = came ? kLongestSpin : std::max(kShortestSpin, learnt / 2);
  if (next != learnt) spin_ns_.store(next.count(), std::memory_order_relaxed);
  return came;
}

// Who rings changes the bell first and then looks whether it is among those to wake for; who sleeps looks at the bell
// first, then says for whom it wakes, and the system lets it sleep only while the bell is what it saw.
bool HostLinks::sleep(const Condition& missing, const Wait& who, Clock::time_point until) {
  ControlBlock& own = control(rank_);
  auto next_look = Clock::now() + kNap;
  while (true) {
    const uint32_t bell = own.bell.load();
    const uint64_t left = missing();
    if (left == 0) return true;
    if (who.aborted != nullptr && who.aborted->load()) {
      throw TransferFailure(TransferFailure::Kind::kOther, -1, "given up by this rank");
    }
    auto now = Clock::now();
    if (now >= until) return false;
    if (now >= next_look) {
      check_peers(missing, who.peers);
      next_look = now + kNap;
      continue;
    }
    // One peer is enough: when it has come, the others may have come too, without waking anybody.
    own.rung_by.fetch_or(bit_of(who.peers[static_cast<size_t>(std::countr_zero(left))]));
    sleep_on(own.bell, bell, std::min(until, next_look) - now);
  }
}

// What a peer left behind is still good, so what is missing is asked for again after its end was seen.
void HostLinks::check_peers(const Condition& missing, const std::vector<int>& peers) const {
  uint64_t closed = 0;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (peers[i] != rank_ && is_closed(peers_[static_cast<size_t>(peers[i])].socket)) closed |= uint64_t{1} << i;
  }
  if (closed == 0) return;
  const uint64_t lost = missing() & closed;
  if (lost == 0) return;
  throw TransferFailure(TransferFailure::Kind::kPeerClosed, std::countr_zero(lost), "closed by peer");
}

void HostLinks::ring(int rank) {
  ControlBlock& other = control(rank);
  other.bell.fetch_add(1);
  if ((other.rung_by.load() & bit_of(rank_)) == 0) return;
  // A sleeper that comes between these lines sees another bell and stays awake.
  other.rung_by.fetch_and(~bit_of(rank_));
  other.bell.fetch_add(1);
  wake_all(other.bell);
}

void HostLinks::ring_self() {
  control(rank_).bell.fetch_add(1);
  wake_all(control(rank_).bell);
}

}  // namespace fsdp::comm
