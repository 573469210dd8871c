#include "fsdp/comm/comm_thread.h"

#include <ATen/ATen.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/block_signals.h"
#include "fsdp/base/error.h"
#include "fsdp/comm/liveness/wait_clock.h"

namespace fsdp::comm {

// What became of a job; shared by who waits for it and the thread that carries it out.
struct CommThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  void finish(const std::exception_ptr& failure);
};

void CommThread::State::finish(const std::exception_ptr& failure) {
  {
    const std::lock_guard lock(mutex);
    done = true;
    error = failure;
  }
  changed.notify_all();
}

struct CommThread::Item {
  Job job;
  Pending first;
  std::shared_ptr<State> completion;
  std::shared_ptr<TraceSink> trace;  // of the thread that posted it
};

class CommThread::Work : public Completion::Work {
 public:
  Work(CommThread& thread, std::shared_ptr<State> state) : thread_(thread), state_(std::move(state)) {}

  void wait() override {
    const WaitClock clock;
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->done; });
    if (state_->error) std::rethrow_exception(state_->error);
  }
  void abandon() noexcept override { thread_.abandon(*state_); }

 private:
  CommThread& thread_;
  std::shared_ptr<State> state_;
};

namespace {
std::exception_ptr destroyed() {
  return std::make_exception_ptr(
      Error(ErrorCode::kCommunication, "[comm] the model was destroyed while a collective of its was in flight."));
}
}  // namespace

CommThread::CommThread(std::string name) : name_(std::move(name)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

CommThread::~CommThread() {
  give_up();
  thread_.join();
}

void CommThread::give_up() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    fail_queue(destroyed());
    if (current_) current_->abort();
  }
  changed_.notify_all();
}

// What waits behind a failure would only wait for the same ranks again.
void CommThread::fail_queue(const std::exception_ptr& error) {
  while (!queue_.empty()) {
    const auto completion = queue_.front()->completion;
    queue_.pop_front();  // first lets go of the buffers
    completion->finish(error);
  }
}

void CommThread::abandon(State& completion) {
  std::unique_ptr<Item> dropped;
  {
    const std::lock_guard lock(mutex_);
    const auto item = std::find_if(queue_.begin(), queue_.end(),
                                   [&](const auto& queued) { return queued->completion.get() == &completion; });
    if (item != queue_.end()) {
      dropped = std::move(*item);
      queue_.erase(item);
      return;
    }
    if (working_on_ == &completion) {
      abandoned_ = true;
      if (current_) current_->abort();
    }
  }
  std::unique_lock lock(completion.mutex);
  completion.changed.wait(lock, [&] { return completion.done; });
}

Completion CommThread::post(Job job) {
  Pending first = job.first();
  const auto state = std::make_shared<State>();
  auto item = std::make_unique<Item>(Item{std::move(job), std::move(first), state, current_trace_sink()});
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    if (stop_) fail_queue(destroyed());
  }
  changed_.notify_all();
  return Completion(std::make_unique<Work>(*this, state));
}

void CommThread::run() {
  block_signals();
  const Backstage backstage;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::unique_ptr<Item> item = std::move(queue_.front());
    queue_.pop_front();
    working_on_ = item->completion.get();
    abandoned_ = false;
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    std::exception_ptr error;
    try {
      carry_out(*item);
    } catch (...) {
      error = std::current_exception();
    }
    if (item->trace) {
      item->trace->add({item->job.name, item->job.unit, begin, std::chrono::steady_clock::now(), name_});
    }
    const auto completion = item->completion;
    item.reset();  // lets go of the buffers before anybody uses them again
    completion->finish(error);
    lock.lock();
    working_on_ = nullptr;
    if (error && !abandoned_) fail_queue(error);
  }
}

void CommThread::carry_out(Item& item) {
  carry_out_stage(item.first);
  for (const Stage& start : item.job.next) {
    Pending transfer = start();
    carry_out_stage(transfer);
  }
  if (item.job.finish) item.job.finish();
}

void CommThread::carry_out_stage(Pending& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || abandoned_) std::rethrow_exception(destroyed());
    current_ = transfer.transfer();
  }
  struct Forget {
    CommThread* thread;
    ~Forget() {
      const std::lock_guard lock(thread->mutex_);
      thread->current_ = nullptr;
    }
  } forget{this};
  transfer.wait();
}

}  // namespace fsdp::comm
