#include "train/base/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fsdp/base/check.h"

namespace fsdp::train {
namespace {

// A process may get one request several times over: from Slurm or systemd, and from a launcher that passes it on. And
// Slurm's warning, SIGUSR1, is followed by a SIGTERM while the ranks still save.
constexpr std::chrono::seconds kOneRequest{1};

}  // namespace

sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kStopSignals) sigaddset(&set, number);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
  return set;
}

StopSignal::StopSignal() : arrivals_(signalfd(-1, &signals_, SFD_CLOEXEC)), end_(eventfd(0, EFD_CLOEXEC)) {
  FSDP_CHECK(arrivals_ && end_, "[train] signalfd, eventfd: got '", std::strerror(errno),
             "', expected descriptors. Allow more.");
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { wait_for_requests(); });
}

StopSignal::~StopSignal() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

std::optional<int> StopSignal::received() {
  const std::lock_guard lock(mutex_);
  take_pending();
  return first_;
}

void StopSignal::wait_for_requests() {
  std::array<pollfd, 2> awaited = {{{arrivals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
  while (true) {
    poll(awaited.data(), awaited.size(), /*timeout=*/-1);
    if (awaited[1].revents != 0) return;
    const std::lock_guard lock(mutex_);
    take_pending();
  }
}

// Under the lock, from the queue to the note: who asks for the first signal never misses one that is on its way.
void StopSignal::take_pending() {
  const timespec no_time = {};
  for (int number = 0; (number = sigtimedwait(&signals_, nullptr, &no_time)) > 0;) take(number);
}

void StopSignal::take(int number) {
  const Answer answer = answer_;
  if (answer == Answer::kEnd) end_process(number);
  if (!first_ && answer == Answer::kNoteAndTell)
    std::fputs("\nfsdp: asked to stop: saving after this step; ask again after a second to end at once\n", stderr);
  if (!first_) first_ = number;
  if (number == SIGUSR1) return;
  const Clock::time_point now = Clock::now();
  if (!first_demand_) first_demand_ = now;
  if (now - *first_demand_ >= kOneRequest) end_process(number);
}

// By the signal, so that whoever waits for this process sees what ended it.
void StopSignal::end_process(int number) {
  signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  raise(number);
  std::_Exit(128 + number);
}

std::string signal_name(int number) {
  const char* abbreviation = sigabbrev_np(number);
  return abbreviation == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(abbreviation);
}

}  // namespace fsdp::train
