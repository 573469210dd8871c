#include "fsdp/comm/liveness/progress_monitor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/block_signals.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPublishPeriod{200};
constexpr milliseconds kPatience{1000};
constexpr milliseconds kMonitorLeavePatience{500};

}  // namespace

ProgressMonitor::ProgressMonitor(BoundedStore& store, const CallLog& calls, const Roster& roster, const Waits& waits,
                                 const HeartbeatOptions& options, std::function<void(const std::string&)> on_loss)
    : store_(store),
      calls_(calls),
      rank_(options.rank),
      period_(heartbeat_period(options.timeout)),
      heartbeat_(store, roster, waits, options),
      on_loss_(std::move(on_loss)),
      next_beat_(Clock::now()),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "fsdp monitor");
}

ProgressMonitor::~ProgressMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
  write(true, kMonitorLeavePatience);
}

void ProgressMonitor::run() {
  // A monitor that dies first would take the diagnosis with it.
  block_signals();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    tick();
    lock.lock();
    stop_changed_.wait_for(lock, std::min(kPublishPeriod, period_), [this] { return stop_; });
  }
}

void ProgressMonitor::tick() {
  const auto now = Clock::now();
  if (now < next_beat_) {
    publish();
    return;
  }
  next_beat_ = now + period_;
  write(false, period_);
  if (is_lost_) return;
  const auto reason = heartbeat_.look();
  if (!reason) return;
  is_lost_ = true;
  on_loss_(*reason);
}

void ProgressMonitor::publish() {
  {
    const std::lock_guard lock(note_mutex_);
    if (calls_.revision() == published_revision_) return;
  }
  write(false, kPatience);
}

// If the store went away with its host, the next failure's message says less, and nothing else depends on it.
void ProgressMonitor::write(bool has_left, BoundedStore::Patience patience) {
  const std::lock_guard lock(note_mutex_);
  const int64_t revision = calls_.revision();
  ProgressNote note = ProgressNote::of(calls_);
  note.beat = ++beat_;
  note.has_left = has_left;
  if (store_.set(note_key(rank_), note.encode(), patience)) published_revision_ = revision;
}

std::optional<ProgressNote> ProgressMonitor::note_of(int rank) {
  const auto text = store_.get(note_key(rank), kPatience);
  return text ? std::optional(ProgressNote::decode(*text)) : std::nullopt;
}

}  // namespace fsdp::comm
