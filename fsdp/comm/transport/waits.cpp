#include "fsdp/comm/transport/waits.h"

#include <algorithm>
#include <utility>

namespace fsdp::comm {

using Clock = std::chrono::steady_clock;

Waits::Scope::Scope(std::shared_ptr<Waits> waits, Transfer& transfer) : waits_(std::move(waits)), transfer_(&transfer) {
  if (!waits_) return;
  const std::lock_guard lock(waits_->mutex_);
  waits_->waits_.push_back({transfer_, Clock::now()});
  if (waits_->reason_) transfer_->abort();
}

// Under the lock, so that nobody aborts a transfer that is gone.
Waits::Scope::~Scope() {
  if (!waits_) return;
  const std::lock_guard lock(waits_->mutex_);
  auto& all = waits_->waits_;
  all.erase(std::find_if(all.begin(), all.end(), [this](const Wait& wait) { return wait.transfer == transfer_; }));
}

void Waits::give_up(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_) return;
  reason_ = reason;
  for (const Wait& wait : waits_) wait.transfer->abort();
}

std::optional<std::string> Waits::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::chrono::milliseconds Waits::longest() const {
  const std::lock_guard lock(mutex_);
  Clock::duration longest{0};
  for (const Wait& wait : waits_) longest = std::max(longest, Clock::now() - wait.begin);
  return std::chrono::duration_cast<std::chrono::milliseconds>(longest);
}

}  // namespace fsdp::comm
