#include "app/launch/signal_inbox.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "fsdp/base/error.h"
#include "train/base/stop_signal.h"

namespace fsdp::app {

SignalInbox::SignalInbox() {
  sigset_t set = train::stop_signal_set();
  sigaddset(&set, SIGCHLD);
  signal(SIGCHLD, SIG_DFL);  // where a parent ignored it, children would leave no trace
  sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) {
    throw Error(ErrorCode::kInternal, "[launch] cannot receive signals: " + std::string(std::strerror(errno)) +
                                          ". Check the limits of this user (ulimit -n).");
  }
}

SignalInbox::~SignalInbox() { close(descriptor_); }

std::vector<int> SignalInbox::take() {
  std::vector<int> numbers;
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) numbers.push_back(static_cast<int>(info.ssi_signo));
  }
  return numbers;
}

std::optional<int> SignalInbox::wait(std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + limit;
  while (true) {
    if (const std::vector<int> numbers = take(); !numbers.empty()) return numbers.front();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd event{descriptor_, POLLIN, 0};
    poll(&event, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
  }
}

}  // namespace fsdp::app
