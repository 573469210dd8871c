#include "app/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "app/launch/exec_strings.h"
#include "app/launch/process_title.h"
#include "fsdp/base/error.h"

namespace fsdp::app {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kInternal, "[launch] " + what + ": " + std::strerror(errno) +
                                        ". Check the limits of this user (ulimit -u, ulimit -n).");
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("cannot make a pipe");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return ends;
}

// Between fork and exec only async-signal-safe calls are allowed, should somebody have preloaded what has threads.
void become_rank(pid_t parent, int out, int err) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  // A shell starts background jobs with INT ignored: a rank could then not be asked to stop. XFSZ is ignored by us.
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGXFSZ}) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_input = open("/dev/null", O_RDONLY);
  dup2(null_input, STDIN_FILENO);
  if (null_input > STDERR_FILENO) close(null_input);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
}

[[noreturn]] void execute(const char* program, char* const* arguments, char* const* environment) {
  execvpe(program, arguments, environment);
  constexpr const char* kBefore = "fsdp: cannot run ";
  constexpr const char* kAfter = ": no such program, or not executable\n";
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, kBefore, std::strlen(kBefore));
  ignored = write(STDERR_FILENO, program, std::strlen(program));
  ignored = write(STDERR_FILENO, kAfter, std::strlen(kAfter));
  _exit(2);
}

void close_as_exec_does() {
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    descriptors.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (const int descriptor : descriptors) {
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0) close(descriptor);
  }
}

// Goes on where exec() would have begun: as main() does.
[[noreturn]] void run_copy(RunVerb run_verb, std::vector<std::string>& arguments,
                           std::vector<std::string>& environment) noexcept {
  close_as_exec_does();
  std::signal(SIGXFSZ, SIG_IGN);
  std::vector<char*> argument_pointers = exec_pointers(arguments), environment_pointers = exec_pointers(environment);
  environ = environment_pointers.data();
  show_title(arguments, environment);
  run_verb(static_cast<int>(arguments.size()), argument_pointers.data());
  _exit(1);
}

// While a group has members its number is not given to another process. Orphans of the group are our children.
bool has_children_in_group(pid_t group) {
  siginfo_t ignored{};
  return waitid(P_PGID, static_cast<id_t>(group), &ignored, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

Child start_child(const ChildCommand& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = child_environment(command.environment);
  const std::vector<char*> argument_pointers = exec_pointers(arguments);
  const std::vector<char*> environment_pointers = exec_pointers(environment);
  const auto out = make_pipe();
  const auto err = make_pipe();
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid < 0) fail("cannot start a process");
  if (child.pid == 0) {
    become_rank(parent, out[1], err[1]);
    if (command.run_verb != nullptr) run_copy(command.run_verb, arguments, environment);
    execute(command.program.c_str(), argument_pointers.data(), environment_pointers.data());
  }
  setpgid(child.pid, child.pid);  // also here: whoever comes first, the group exists before it is signalled
  close(out[1]);
  close(err[1]);
  child.out = out[0];
  child.err = err[0];
  child.running = true;
  return child;
}

std::vector<size_t> collect_ended(std::vector<Child>& children) {
  std::vector<size_t> ended;
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    const auto child = std::find_if(children.begin(), children.end(), [pid](const Child& candidate) {
      return candidate.running && candidate.pid == pid;
    });
    if (child == children.end()) continue;
    child->stopped = WIFSTOPPED(status);
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
    child->running = false;
    child->status = from_wait_status(status);
    child->has_heirs = true;
    ended.push_back(static_cast<size_t>(child - children.begin()));
  }
  for (Child& child : children) {
    if (child.has_heirs) child.has_heirs = has_children_in_group(child.pid);
  }
  return ended;
}

void send_signal(const Child& child, int number) {
  if (child.running || child.has_heirs) kill(-child.pid, number);
}

}  // namespace fsdp::app
