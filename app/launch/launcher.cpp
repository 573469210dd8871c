#include "app/launch/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fsdp/base/error.h"
#include "train/threads.h"

namespace fsdp::app {
namespace {

// Ranks that lose a peer fail too, with the code for communication errors. For this long after such a failure the
// launcher waits for the one that explains it.
constexpr std::chrono::milliseconds kCauseWindow{1500};

bool is_failure(const Child& child) { return !child.running && child.status != 0; }

bool is_consequence(const Child& child) {
  return WIFEXITED(child.status) && WEXITSTATUS(child.status) == static_cast<int>(ErrorCode::kCommunication);
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  }
  return "exited with code " + std::to_string(WEXITSTATUS(status));
}

int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

}  // namespace

Launcher::Launcher(LaunchOptions options)
    : options_(std::move(options)),
      cores_(static_cast<int>(train::available_cores().size())),
      output_(options_.nproc, {.prefix = options_.prefix, .draws_status = isatty(STDOUT_FILENO) != 0}),
      children_(static_cast<size_t>(options_.nproc)) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0)
    throw Error(ErrorCode::kInternal, "[launch] cannot receive signals: " + std::string(strerror(errno)));
}

Launcher::~Launcher() {
  signal_all(SIGKILL);
  for (Child& child : children_) {
    if (child.running) waitpid(child.pid, nullptr, 0);
    if (child.out >= 0) close(child.out);
    if (child.err >= 0) close(child.err);
  }
  close(signals_);
}

int Launcher::run(uint16_t store_port) {
  store_port_ = store_port;
  start_ranks();
  while (any_running()) {
    wait_for_events();
    read_signals();
    for (int rank = 0; rank < options_.nproc; ++rank) read_output(rank);
    collect_exits();
    advance(Clock::now());
  }
  return report();
}

void Launcher::start_ranks() {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    output_.note("launch: " + std::to_string(options_.nproc) +
                 " ranks with OMP_NUM_THREADS=" + std::to_string(std::max(1, cores_ / options_.nproc)) + " (" +
                 std::to_string(cores_) + " cores; set the variable to choose)");
  }
  for (int rank = 0; rank < options_.nproc; ++rank)
    children_[static_cast<size_t>(rank)] = start_child(command_of(rank));
}

ChildCommand Launcher::command_of(int rank) const {
  const std::string world = std::to_string(options_.nproc);
  ChildCommand command{options_.program, options_.arguments, {}};
  command.environment = {{"FSDP_LAUNCH", "1"},
                         {"RANK", std::to_string(rank)},
                         {"LOCAL_RANK", std::to_string(rank)},
                         {"WORLD_SIZE", world},
                         {"LOCAL_WORLD_SIZE", world},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(store_port_)},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    command.environment["OMP_NUM_THREADS"] = std::to_string(std::max(1, cores_ / options_.nproc));
  }
  if (rank == 0 && isatty(STDOUT_FILENO) != 0) command.environment["FSDP_STATUS_LINE"] = "1";
  return command;
}

void Launcher::wait_for_events() {
  std::vector<pollfd> events{{signals_, POLLIN, 0}};
  for (const Child& child : children_) {
    if (child.out >= 0) events.push_back({child.out, POLLIN, 0});
    if (child.err >= 0) events.push_back({child.err, POLLIN, 0});
  }
  int timeout = -1;
  if (state_ == State::kFailed || state_ == State::kStopping) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    timeout = static_cast<int>(std::max<int64_t>(0, left.count() + 1));
  }
  poll(events.data(), events.size(), timeout);
}

void Launcher::read_signals() {
  signalfd_siginfo info{};
  while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (stop_signal_) {  // asked twice: no more patience
      signal_all(SIGKILL);
      state_ = State::kKilled;
      continue;
    }
    stop_signal_ = number;
    signal_all(number);
    state_ = State::kStopping;
    deadline_ = Clock::now() + options_.grace;
  }
}

void Launcher::read_output(int rank) {
  Child& child = children_[static_cast<size_t>(rank)];
  char buffer[1 << 14];
  for (auto [descriptor, stream] :
       {std::pair{&child.out, RankOutput::Stream::kOut}, {&child.err, RankOutput::Stream::kErr}}) {
    while (*descriptor >= 0) {
      const ssize_t size = read(*descriptor, buffer, sizeof(buffer));
      if (size > 0) {
        output_.feed(rank, stream, {buffer, static_cast<size_t>(size)});
      } else if (size < 0 && errno == EINTR) {
        continue;
      } else if (size < 0 && errno == EAGAIN) {
        break;
      } else {
        close(*descriptor);
        *descriptor = -1;
      }
    }
  }
}

void Launcher::collect_exits() {
  for (int rank = 0; rank < options_.nproc; ++rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    if (child.running && waitpid(child.pid, &child.status, WNOHANG) == child.pid) {
      child.running = false;
      read_output(rank);
      output_.finish(rank);
      note_exit(rank);
    }
  }
}

void Launcher::note_exit(int rank) {
  const Child& child = children_[static_cast<size_t>(rank)];
  if (!is_failure(child) || state_ == State::kStopping || state_ == State::kKilled) return;
  const bool explains = culprit_ && is_consequence(children_[static_cast<size_t>(*culprit_)]) && !is_consequence(child);
  if (!culprit_ || explains) culprit_ = rank;
  if (state_ == State::kRunning) {
    state_ = State::kFailed;
    deadline_ = Clock::now() + (is_consequence(child) ? kCauseWindow : std::chrono::milliseconds(0));
  } else if (explains) {
    deadline_ = Clock::now();
  }
}

void Launcher::advance(Clock::time_point now) {
  if ((state_ != State::kFailed && state_ != State::kStopping) || now < deadline_) return;
  if (state_ == State::kFailed) {
    signal_all(SIGTERM);
    state_ = State::kStopping;
    deadline_ = now + options_.grace;
  } else {
    signal_all(SIGKILL);
    state_ = State::kKilled;
  }
}

void Launcher::signal_all(int signal_number) {
  for (const Child& child : children_) {
    if (child.running) kill(-child.pid, signal_number);
  }
}

bool Launcher::any_running() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
}

int Launcher::report() {
  if (stop_signal_ && !culprit_) {
    output_.note("launch: stopped by signal " + std::to_string(*stop_signal_) + " (" + strsignal(*stop_signal_) + ")");
    return 128 + *stop_signal_;
  }
  if (!culprit_) return 0;
  const Child& child = children_[static_cast<size_t>(*culprit_)];
  std::vector<std::string> lines = output_.last_lines(*culprit_, RankOutput::Stream::kErr);
  if (lines.empty() && WIFSIGNALED(child.status)) lines = output_.last_lines(*culprit_, RankOutput::Stream::kOut);
  output_.note("launch: rank " + std::to_string(*culprit_) + " of " + std::to_string(options_.nproc) + " " +
               describe_exit(child.status) + "; all ranks were stopped" + (lines.empty() ? "" : ". Its last lines:"));
  for (const std::string& line : lines) output_.note("  | " + line);
  return exit_code(child.status);
}

}  // namespace fsdp::app
