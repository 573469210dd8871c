#include "train/stop_signal.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace fsdp::train {
namespace {

constexpr char kAnswer[] = "\nfsdp: asked to stop: saving after this step; ask again after a second to end at once\n";

std::atomic<int> first{0};
std::atomic<bool> answers{false};
std::array<struct sigaction, kStopSignals.size()> before;

std::atomic<int64_t> first_demand_ns{0};  // when the first but SIGUSR1 came

int64_t now_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // one of the few calls that a handler may make
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// A process may get one request several times over: from Slurm or systemd, and from a launcher that passes it on. And
// Slurm's warning, SIGUSR1, is followed by a SIGTERM while the ranks still save.
void handle(int number) {
  constexpr int64_t kOneRequest = 1'000'000'000;
  int none = 0;
  if (first.compare_exchange_strong(none, number) && answers) {
    const int kept_error = errno;
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kAnswer, sizeof(kAnswer) - 1);
    errno = kept_error;
  }
  if (number == SIGUSR1) return;
  int64_t never = 0;
  if (first_demand_ns.compare_exchange_strong(never, now_ns()) || now_ns() - never < kOneRequest) return;
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

StopSignal::StopSignal(Answer answer) {
  answers = answer == Answer::kTell;
  first = 0;
  first_demand_ns = 0;
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;  // a read that is interrupted for this would only be begun again
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &action, &before[i]);
    const bool is_nohup = kStopSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (is_nohup) sigaction(SIGHUP, &before[i], nullptr);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &before[i], nullptr);
}

std::optional<int> StopSignal::received() const {
  const int number = first;
  return number == 0 ? std::nullopt : std::optional(number);
}

std::string signal_name(int number) {
  const char* abbreviation = sigabbrev_np(number);
  return abbreviation == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(abbreviation);
}

}  // namespace fsdp::train
