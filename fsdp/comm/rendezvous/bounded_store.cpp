#include "fsdp/comm/rendezvous/bounded_store.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "fsdp/base/block_signals.h"
#include "fsdp/base/number_text.h"
#include "fsdp/comm/rendezvous/store.h"

namespace fsdp::comm {
namespace {

// More wait only while the store hangs.
constexpr size_t kMostJobs = 64;
constexpr std::chrono::seconds kLeavePatience{1};

}  // namespace

// Shared with the thread, which may outlive the object.
struct BoundedStore::State {
  struct Job {
    Question question;
    std::shared_ptr<std::optional<std::string>> answer;
  };

  explicit State(c10::intrusive_ptr<c10d::Store> store) : store(std::move(store)) {}
  void run();

  c10::intrusive_ptr<c10d::Store> store;  // the thread's own
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool stop = false;
  bool is_gone = false;  // the store
  bool has_ended = false;
};

void BoundedStore::State::run() {
  block_signals();
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stop || !jobs.empty(); });
    if (stop) break;
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    std::optional<std::string> answer;
    try {
      answer = job.question(*store);
    } catch (const std::exception&) {
      // Whoever asked sees that there is no answer.
    }
    lock.lock();
    *job.answer = answer;
    if (!answer) {
      is_gone = true;
      jobs.clear();
    }
    changed.notify_all();
  }
  has_ended = true;
  changed.notify_all();
}

BoundedStore::BoundedStore(c10::intrusive_ptr<c10d::Store> store)
    : state_(std::make_shared<State>(std::move(store))), thread_([state = state_] { state->run(); }) {
  pthread_setname_np(thread_.native_handle(), "fsdp store");
}

BoundedStore::~BoundedStore() {
  bool has_ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stop = true;
    state_->changed.notify_all();
    has_ended = state_->changed.wait_for(lock, kLeavePatience, [this] { return state_->has_ended; });
  }
  has_ended ? thread_.join() : thread_.detach();
}

std::optional<std::string> BoundedStore::ask(Question question, Patience patience) {
  const auto answer = std::make_shared<std::optional<std::string>>();
  std::unique_lock lock(state_->mutex);
  if (state_->is_gone || state_->jobs.size() >= kMostJobs) return std::nullopt;
  state_->jobs.push_back({std::move(question), answer});
  state_->changed.notify_all();
  state_->changed.wait_for(lock, patience, [&] { return answer->has_value() || state_->is_gone; });
  return *answer;
}

bool BoundedStore::set(const std::string& key, const std::string& value, Patience patience) {
  const auto write = [key, value](c10d::Store& store) {
    store.set(key, to_bytes(value));
    return std::string();
  };
  return ask(write, patience).has_value();
}

std::optional<std::string> BoundedStore::get(const std::string& key, Patience patience) {
  const auto read = [key](c10d::Store& store) { return store.check({key}) ? to_text(store.get(key)) : std::string(); };
  return ask(read, patience);
}

std::optional<std::string> BoundedStore::claim(const std::string& key, const std::string& value, Patience patience) {
  const auto write = [key, value](c10d::Store& store) { return to_text(store.compareSet(key, {}, to_bytes(value))); };
  return ask(write, patience);
}

std::optional<int64_t> BoundedStore::add(const std::string& key, int64_t value, Patience patience) {
  const auto sum = ask([key, value](c10d::Store& store) { return std::to_string(store.add(key, value)); }, patience);
  return sum ? parse_integer<int64_t>(*sum) : std::nullopt;
}

}  // namespace fsdp::comm
