#include "train/data/prefetch.h"

#include <ATen/record_function.h>

#include <chrono>
#include <utility>

namespace fsdp::train {

Prefetch::Prefetch(const StepSource& source) : source_(source), thread_([this] { work(); }) {}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

double Prefetch::take_wait_ms() { return std::exchange(wait_ms_, 0); }

const StepBatches& Prefetch::batches(int64_t step) const {
  const StepPlace place = source_.place_of(step);
  if (!current_ || current_->place != place) {
    const auto begin = std::chrono::steady_clock::now();
    current_.reset();
    Read read = take(place);
    wait_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (read.failure) std::rethrow_exception(read.failure);
    current_ = std::move(read);
    const std::lock_guard lock(mutex_);
    wanted_ = source_.place_of(step + 1);
    changed_.notify_all();
  }
  return current_->batches;
}

// Waits until it is there, and has it read if nobody did.
Prefetch::Read Prefetch::take(const StepPlace& place) const {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return ready_ && ready_->place == place; };
  if (!is_there() && reading_ != place) {
    wanted_ = place;
    changed_.notify_all();
  }
  changed_.wait(lock, is_there);
  Read read = std::move(*ready_);
  ready_.reset();
  return read;
}

void Prefetch::work() {
  const at::DisableRecordFunctionGuard unseen;  // the engine watches operators; these are none of the model's
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || wanted_; });
    if (ends_) return;
    Read read;
    read.place = *wanted_;
    reading_ = std::exchange(wanted_, std::nullopt);
    lock.unlock();
    try {
      read.batches = source_.read_step(read.place);
    } catch (...) {
      read.failure = std::current_exception();
    }
    lock.lock();
    reading_.reset();
    ready_ = std::move(read);
    changed_.notify_all();
  }
}

}  // namespace fsdp::train
