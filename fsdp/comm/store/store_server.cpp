#include "fsdp/comm/store/store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/base/block_signals.h"
#include "fsdp/base/error.h"
#include "fsdp/comm/store/guest.h"
#include "fsdp/comm/store/key_table.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kAcceptsPerTurn = 64;
constexpr milliseconds kRestWithoutDescriptors{100};
constexpr milliseconds kLongestStoreWait = std::chrono::hours(24 * 365);
constexpr milliseconds kLongestTurn = std::chrono::minutes(10);

[[noreturn]] void throw_no_store(int error) {
  throw Error(ErrorCode::kCommunication, std::string("[init] cannot host the store of the job: ") +
                                             std::strerror(error) + ". Check the limits of this user (ulimit -n).");
}

bool changes_keys(const StoreRequest& request) {
  return request.operation == StoreOperation::kSet || request.operation == StoreOperation::kAdd ||
         request.operation == StoreOperation::kCompareSet || request.operation == StoreOperation::kAppend;
}

}  // namespace

// All of it runs on the thread of the store, but the constructor and stop().
class StoreServer::Loop {
 public:
  Loop(FileDescriptor listener, StoreServerOptions options);
  void run();
  void stop();

 private:
  struct Visit {
    explicit Visit(FileDescriptor socket) : guest(std::move(socket)) {}
    Guest guest;
    std::optional<StoreRequest> waiting;  // for a key that is not there
    size_t missing = 0;                   // the place of that key
    Clock::time_point deadline;           // to prove itself, or for the key
    uint32_t events = EPOLLIN;            // that are watched
  };
  using Visits = std::unordered_map<int, Visit>;
  using Queue = std::set<std::pair<Clock::time_point, int>>;  // by deadline

  void handle(int descriptor, uint32_t events);
  void accept_guests();
  void admit(FileDescriptor socket);
  bool make_room();
  bool serve(Visit& visit);
  bool carry_out(Visit& visit, StoreRequest request);
  void await_key(Visit& visit, size_t missing);
  void forget_key(Visit& visit);
  void end_wait(Visit& visit, const StoreAnswer& answer);
  void wake_for(const std::vector<std::string>& keys);
  void expire(Clock::time_point now);
  void close(int descriptor, std::optional<RefusalReason> reason);
  int turn_ms() const;
  void watch(int descriptor, uint32_t events, int operation);

  StoreServerOptions options_;
  RefusalLog log_;
  FileDescriptor listener_;
  FileDescriptor poll_;
  FileDescriptor wake_;
  std::atomic<bool> stop_{false};
  KeyTable table_;
  Visits visits_;    // by descriptor
  Queue strangers_;  // who comes first has the first deadline
  Queue waiters_;
  std::unordered_map<std::string, std::set<int>> waiters_for_;  // by the first key that is missing
  std::optional<Clock::time_point> rests_until_;                // no descriptors are left
};

StoreServer::Loop::Loop(FileDescriptor listener, StoreServerOptions options)
    : options_(std::move(options)),
      log_(options_.on_refusal),
      listener_(std::move(listener)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!poll_ || !wake_) throw_no_store(errno);
  watch(listener_.get(), EPOLLIN, EPOLL_CTL_ADD);
  watch(wake_.get(), EPOLLIN, EPOLL_CTL_ADD);
}

void StoreServer::Loop::watch(int descriptor, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  epoll_ctl(poll_.get(), operation, descriptor, &event);
}

void StoreServer::Loop::stop() {
  stop_ = true;
  eventfd_write(wake_.get(), 1);
}

void StoreServer::Loop::run() {
  block_signals();
  std::array<epoll_event, 256> events;
  while (!stop_) {
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), turn_ms());
    for (int i = 0; i < count; ++i)
      handle(events[static_cast<size_t>(i)].data.fd, events[static_cast<size_t>(i)].events);
    expire(Clock::now());
  }
}

int StoreServer::Loop::turn_ms() const {
  auto next = Clock::now() + kLongestTurn;
  if (!strangers_.empty()) next = std::min(next, strangers_.begin()->first);
  if (!waiters_.empty()) next = std::min(next, waiters_.begin()->first);
  if (rests_until_) next = std::min(next, *rests_until_);
  return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(next - Clock::now()).count()));
}

void StoreServer::Loop::handle(int descriptor, uint32_t events) {
  if (descriptor == listener_.get()) {
    accept_guests();
    return;
  }
  const auto found = visits_.find(descriptor);
  if (found == visits_.end()) return;  // stop(), or closed since
  Visit& visit = found->second;
  const bool was_stranger = !visit.guest.is_proven();
  bool lives = (events & EPOLLOUT) == 0 || visit.guest.send_rest();
  if (lives && (events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) lives = serve(visit);
  if (was_stranger && visit.guest.is_proven()) strangers_.erase({visit.deadline, descriptor});
  if (!lives) {
    close(descriptor, visit.guest.refusal());
    return;
  }
  const uint32_t wanted = EPOLLIN | (visit.guest.has_rest() ? static_cast<uint32_t>(EPOLLOUT) : 0U);
  if (wanted == visit.events) return;
  visit.events = wanted;
  watch(descriptor, wanted, EPOLL_CTL_MOD);
}

void StoreServer::Loop::accept_guests() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      admit(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (make_room()) continue;
      watch(listener_.get(), 0, EPOLL_CTL_MOD);
      rests_until_ = Clock::now() + kRestWithoutDescriptors;
      return;
    }
    if (errno != ECONNABORTED && errno != EINTR) return;
  }
}

void StoreServer::Loop::admit(FileDescriptor socket) {
  if (static_cast<int>(strangers_.size()) >= options_.strangers.most) make_room();
  const int descriptor = socket.get();
  const int yes = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  Visit& visit = visits_.emplace(descriptor, std::move(socket)).first->second;
  visit.deadline = Clock::now() + options_.strangers.patience;
  strangers_.insert({visit.deadline, descriptor});
  watch(descriptor, visit.events, EPOLL_CTL_ADD);
  if (!visit.guest.greet(options_.secret)) close(descriptor, std::nullopt);
}

// Closes the stranger that came first, if there is one.
bool StoreServer::Loop::make_room() {
  if (strangers_.empty()) return false;
  close(strangers_.begin()->second, RefusalReason::kCrowd);
  return true;
}

bool StoreServer::Loop::serve(Visit& visit) {
  if (!visit.guest.receive(options_.secret)) return false;
  while (!visit.waiting) {
    auto request = visit.guest.next_request();
    if (!request) return !visit.guest.refusal();
    if (!carry_out(visit, std::move(*request))) return false;
  }
  return true;
}

bool StoreServer::Loop::carry_out(Visit& visit, StoreRequest request) {
  const auto answer = table_.answer(request);
  if (!answer) {
    visit.deadline = Clock::now() + std::clamp(request.patience, milliseconds(0), kLongestStoreWait);
    visit.waiting = std::move(request);
    await_key(visit, table_.missing_key(*visit.waiting, 0));
    return true;
  }
  if (!visit.guest.answer(*answer)) return false;
  if (changes_keys(request)) wake_for(request.keys);
  return true;
}

void StoreServer::Loop::await_key(Visit& visit, size_t missing) {
  visit.missing = missing;
  waiters_.insert({visit.deadline, visit.guest.descriptor()});
  waiters_for_[visit.waiting->keys[missing]].insert(visit.guest.descriptor());
}

void StoreServer::Loop::forget_key(Visit& visit) {
  waiters_.erase({visit.deadline, visit.guest.descriptor()});
  const auto found = waiters_for_.find(visit.waiting->keys[visit.missing]);
  if (found == waiters_for_.end()) return;
  found->second.erase(visit.guest.descriptor());
  if (found->second.empty()) waiters_for_.erase(found);
}

// The guest is not the one that is being served.
void StoreServer::Loop::end_wait(Visit& visit, const StoreAnswer& answer) {
  visit.waiting.reset();
  const int descriptor = visit.guest.descriptor();
  if (!visit.guest.answer(answer)) {
    close(descriptor, std::nullopt);
  } else if (visit.guest.has_rest() && (visit.events & EPOLLOUT) == 0) {
    visit.events |= EPOLLOUT;
    watch(descriptor, visit.events, EPOLL_CTL_MOD);
  }
}

void StoreServer::Loop::wake_for(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const auto found = waiters_for_.find(key);
    if (found == waiters_for_.end()) continue;
    const std::set<int> waiters = found->second;
    for (const int descriptor : waiters) {
      Visit& visit = visits_.at(descriptor);
      forget_key(visit);
      // Keys before that one were there; most of them still are.
      const size_t next = table_.missing_key(*visit.waiting, visit.missing);
      const bool may_be_complete = next == visit.waiting->keys.size();
      if (const auto answer = may_be_complete ? table_.answer(*visit.waiting) : std::nullopt) {
        end_wait(visit, *answer);
      } else {
        await_key(visit, may_be_complete ? table_.missing_key(*visit.waiting, 0) : next);
      }
    }
  }
}

void StoreServer::Loop::expire(Clock::time_point now) {
  while (!strangers_.empty() && strangers_.begin()->first <= now) {
    close(strangers_.begin()->second, RefusalReason::kSilent);
  }
  while (!waiters_.empty() && waiters_.begin()->first <= now) {
    Visit& visit = visits_.at(waiters_.begin()->second);
    forget_key(visit);
    end_wait(visit, {StoreVerdict::kLate, 0, {}});
  }
  if (rests_until_ && *rests_until_ <= now) {
    rests_until_.reset();
    watch(listener_.get(), EPOLLIN, EPOLL_CTL_MOD);
  }
}

void StoreServer::Loop::close(int descriptor, std::optional<RefusalReason> reason) {
  const auto found = visits_.find(descriptor);
  Visit& visit = found->second;
  if (reason) log_.tell(*reason, visit.guest.name(), Clock::now());
  if (visit.waiting) forget_key(visit);
  if (!visit.guest.is_proven()) strangers_.erase({visit.deadline, descriptor});
  visits_.erase(found);  // which closes the descriptor, and the kernel forgets it
}

FileDescriptor StoreServer::listen() {
  Socket listener = listen_on(Reach::kThisHost, 0);
  if (!listener.descriptor) throw_no_store(listener.error);
  return std::move(listener.descriptor);
}

StoreServer::StoreServer(StoreServerOptions options) : StoreServer(listen(), std::move(options)) {}

StoreServer::StoreServer(FileDescriptor listener, StoreServerOptions options) {
  start(std::move(listener), std::move(options));
}

void StoreServer::start(FileDescriptor listener, StoreServerOptions options) {
  port_ = port_of(listener);
  loop_ = std::make_unique<Loop>(std::move(listener), std::move(options));
  thread_ = std::thread([this] { loop_->run(); });
  pthread_setname_np(thread_.native_handle(), "fsdp store host");
}

StoreServer::~StoreServer() {
  loop_->stop();
  thread_.join();
}

}  // namespace fsdp::comm
