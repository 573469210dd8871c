#include "app/launch/attempt.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "app/launch/duration_text.h"
#include "fsdp/comm/rendezvous/secret_source.h"

namespace fsdp::app {
namespace {

using std::chrono::milliseconds;

// Ranks that lose a peer fail too. For this long after such a failure the launcher waits for the one that explains it.
constexpr milliseconds kCauseWindow{1500};
// After a failure there is nothing left to save together, so nobody needs longer than this to stop.
constexpr milliseconds kFailureGrace = std::chrono::seconds(10);
// A killed process that is not gone by then hangs in the kernel, on a dead file system for one, and may do so for ever.
constexpr milliseconds kKillGrace = std::chrono::seconds(30);
// Per turn and stream, so that a rank that never stops printing does not keep signals waiting.
constexpr int kReadsPerTurn = 64;

}  // namespace

Attempt::Attempt(const LaunchOptions& options, int number, uint16_t store_port, SignalInbox& signals,
                 RankOutput& output, Notices& notices)
    : options_(options),
      number_(number),
      store_port_(store_port),
      signals_(signals),
      output_(output),
      notices_(notices),
      children_(static_cast<size_t>(options.nproc)) {}

Attempt::~Attempt() {
  for (const Child& child : children_) {
    if (child.running) send_signal(child, SIGKILL);
    if (child.out >= 0) close(child.out);
    if (child.err >= 0) close(child.err);
  }
}

void Attempt::start_ranks() {
  if (number_ == 0 && options_.threads) {
    output_.note("launch: " + std::to_string(options_.nproc) +
                 " ranks with OMP_NUM_THREADS=" + std::to_string(*options_.threads) + " (" +
                 std::to_string(options_.cores) + " cores; set the variable to choose)");
  }
  begin_ = Clock::now();
  for (int rank = 0; rank < options_.nproc; ++rank) {
    children_[static_cast<size_t>(rank)] = start_child(command_of(rank));
  }
}

AttemptEnd Attempt::run() {
  while (!is_over()) {
    wait_for_events();
    for (const int number : signals_.take()) pass_on(number);
    for (const std::string& notice : notices_.take()) output_.note("launch: " + notice);
    for (int rank = 0; rank < options_.nproc; ++rank) read_output(rank);
    collect_exits();
    advance();
  }
  return conclude();
}

ChildCommand Attempt::command_of(int rank) const {
  const std::string world = std::to_string(options_.nproc);
  ChildCommand command{options_.run_verb, options_.program, options_.arguments, {}};
  command.environment = {{"FSDP_LAUNCH", "1"},
                         {"FSDP_RESTART_COUNT", std::to_string(number_)},
                         {"RANK", std::to_string(rank)},
                         {"LOCAL_RANK", std::to_string(rank)},
                         {"WORLD_SIZE", world},
                         {"LOCAL_WORLD_SIZE", world},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(store_port_)},
                         {"TORCHELASTIC_RESTART_COUNT", std::to_string(number_)},
                         {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.restarts.max_restarts)},
                         {"TORCHELASTIC_USE_AGENT_STORE", "False"}};  // the store is not c10d's
  if (!options_.made_secret.empty()) command.environment[comm::kSecretVariable] = options_.made_secret;
  if (rank == 0 && isatty(STDOUT_FILENO) != 0) command.environment["FSDP_STATUS_LINE"] = "1";
  return command;
}

void Attempt::wait_for_events() const {
  std::vector<pollfd> events{{signals_.descriptor(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (child.out >= 0) events.push_back({child.out, POLLIN, 0});
    if (child.err >= 0) events.push_back({child.err, POLLIN, 0});
  }
  int timeout = 1000;  // a SIGCHLD may go to a thread that somebody preloaded
  if (phase_ != Phase::kRunning) {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  }
  poll(events.data(), events.size(), timeout);
}

void Attempt::read_output(int rank) {
  Child& child = children_[static_cast<size_t>(rank)];
  char buffer[1 << 14];
  for (auto [descriptor, stream] :
       {std::pair{&child.out, RankOutput::Stream::kOut}, {&child.err, RankOutput::Stream::kErr}}) {
    for (int i = 0; i < kReadsPerTurn && *descriptor >= 0; ++i) {
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

void Attempt::collect_exits() {
  for (const size_t index : collect_ended(children_)) {
    const int rank = static_cast<int>(index);
    read_output(rank);
    output_.finish(rank);
    note_exit(rank);
  }
}

bool Attempt::explains_more(const ExitStatus& status) const {
  const Cause cause = cause_of(status);
  if (cause == Cause::kNone || phase_ == Phase::kKilled) return false;
  if (phase_ == Phase::kStopping) {
    // Ranks that are being stopped end in any way, but one that was asked to save and failed has a reason of its own.
    const bool obeyed = passed_on_.count(exit_code(status) - 128) != 0;
    if (passed_on_.empty() || obeyed || cause != Cause::kOwn) return false;
  }
  return !end_.culprit || cause > cause_of(end_.status);
}

void Attempt::note_exit(int rank) {
  const ExitStatus& status = children_[static_cast<size_t>(rank)].status;
  if (!explains_more(status)) return;
  end_.culprit = rank;
  end_.status = status;
  end_.uptime = std::chrono::duration_cast<milliseconds>(Clock::now() - begin_);
  if (phase_ == Phase::kStopping) return;
  phase_ = Phase::kEnding;
  deadline_ = Clock::now() + time_to_follow(cause_of(status));
}

milliseconds Attempt::time_to_follow(Cause cause) const {
  if (cause == Cause::kRequest) return options_.grace;  // the others save too
  return cause == Cause::kLostPeer ? kCauseWindow : milliseconds(0);
}

void Attempt::pass_on(int signal_number) {
  const bool is_urgent = signal_number != SIGUSR1;
  const bool lost_patience = is_urgent && was_urged_;
  was_urged_ = was_urged_ || is_urgent;
  if (!end_.stop_signal) end_.stop_signal = signal_number;
  if (phase_ == Phase::kKilled) return;
  if (lost_patience) {
    kill_all();
    return;
  }
  if (has_failed() || !passed_on_.insert(signal_number).second) return;  // they are stopping already
  end_.culprit.reset();
  signal_all(signal_number == SIGHUP ? SIGTERM : signal_number);  // few programs save when a terminal closes
  if (phase_ != Phase::kStopping) {
    output_.note("launch: asked ranks to stop; up to " + in_seconds(options_.grace) + " to save");
  }
  phase_ = Phase::kStopping;
  deadline_ = Clock::now() + options_.grace;
}

void Attempt::advance() {
  const bool is_due = Clock::now() >= deadline_;
  if (phase_ == Phase::kEnding && (is_due || !any_running())) {
    stop_others();
  } else if (phase_ == Phase::kStopping && is_due) {
    kill_all();
  }
}

void Attempt::stop_others() {
  for (int rank = 0; rank < options_.nproc; ++rank) {
    const Child& child = children_[static_cast<size_t>(rank)];
    if (!child.running || !child.stopped) continue;
    output_.note("launch: rank " + std::to_string(rank) + " of " + std::to_string(options_.nproc) +
                 " does not run (stopped, as by SIGSTOP); it is killed");
    send_signal(child, SIGKILL);
  }
  signal_all(SIGTERM);
  phase_ = Phase::kStopping;
  deadline_ = Clock::now() + std::min(options_.grace, kFailureGrace);
}

void Attempt::kill_all() {
  end_.num_killed = static_cast<int>(
      std::count_if(children_.begin(), children_.end(), [](const Child& child) { return child.running; }));
  signal_all(SIGKILL);
  phase_ = Phase::kKilled;
  deadline_ = Clock::now() + kKillGrace;
}

void Attempt::signal_all(int signal_number) {
  for (const Child& child : children_) send_signal(child, signal_number);
}

bool Attempt::any_running() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
}

bool Attempt::any_heirs() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.has_heirs; });
}

// Ranks that finished may leave something behind; ranks that stop may not, as it could be what is still saving.
bool Attempt::is_over() const {
  if (phase_ == Phase::kKilled && Clock::now() >= deadline_) return true;
  return !any_running() && (phase_ == Phase::kRunning || !any_heirs());
}

bool Attempt::has_failed() const { return end_.culprit && cause_of(end_.status) > Cause::kRequest; }

AttemptEnd Attempt::conclude() {
  for (int rank = 0; rank < options_.nproc; ++rank) {
    const Child& child = children_[static_cast<size_t>(rank)];
    read_output(rank);
    output_.finish(rank);
    if (child.running) {
      output_.note("launch: rank " + std::to_string(rank) + " (process " + std::to_string(child.pid) +
                   ") was killed and does not go away; it is left behind");
    }
    if (!end_.culprit && cause_of(child.status) > cause_of(end_.status)) end_.status = child.status;
  }
  return end_;
}

}  // namespace fsdp::app
