#include "train/prepare/prepare_pool.h"

#include <algorithm>

namespace fsdp::train {

PreparePool::PreparePool(const Tasks& tasks, const PreparePlan& plan, int num_threads)
    : tasks_(tasks), plan_(plan), most_waiting_(static_cast<size_t>(2 * num_threads)) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { work(); });
    ++num_running_;
  }
}

PreparePool::~PreparePool() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PreparePool::work() {
  std::exception_ptr failure;
  try {
    while (PrepareTask* task = acquire()) {
      const DocumentBatch batch = task->read();
      release(task);
      task->write(batch.number, encode_batch(plan_, batch));
      changed_.notify_all();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  if (failure && !failure_) failure_ = failure;
  stops_ = stops_ || failure;
  --num_running_;
  changed_.notify_all();
}

// The oldest task that may be read from, else a new one.
PrepareTask* PreparePool::find_task() {
  const auto ready = std::find_if(idle_.begin(), idle_.end(),
                                  [this](const PrepareTask* task) { return task->num_waiting() < most_waiting_; });
  if (ready != idle_.end()) {
    PrepareTask* task = *ready;
    idle_.erase(ready);
    return task;
  }
  while (next_task_ < tasks_.size()) {
    PrepareTask* task = tasks_[next_task_++].get();
    if (!task->is_read()) return task;
  }
  return nullptr;
}

// A task that nobody else reads from; null when there is nothing left to read.
PrepareTask* PreparePool::acquire() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (PrepareTask* task = find_task()) {
      ++num_reading_;
      return task;
    }
    if (num_reading_ == 0 && idle_.empty()) return nullptr;
    changed_.wait(lock);
  }
  return nullptr;
}

void PreparePool::release(PrepareTask* task) {
  const std::lock_guard lock(mutex_);
  --num_reading_;
  if (!task->is_read()) idle_.insert(idle_.begin(), task);
  changed_.notify_all();
}

}  // namespace fsdp::train
