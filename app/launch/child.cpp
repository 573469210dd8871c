#include "app/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

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

std::vector<std::string> child_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Between fork and exec only async-signal-safe calls are allowed: the launcher has threads.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* environment, pid_t parent, int out,
                         int err) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_input = open("/dev/null", O_RDONLY);
  dup2(null_input, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvpe(program, arguments, environment);
  constexpr const char* kBefore = "fsdp: cannot run ";
  constexpr const char* kAfter = ": no such program, or not executable\n";
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, kBefore, std::strlen(kBefore));
  ignored = write(STDERR_FILENO, program, std::strlen(program));
  ignored = write(STDERR_FILENO, kAfter, std::strlen(kAfter));
  _exit(2);
}

}  // namespace

Child start_child(const ChildCommand& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = child_environment(command.environment);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  const auto out = make_pipe();
  const auto err = make_pipe();
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid < 0) fail("cannot start a process");
  if (child.pid == 0) {
    become(command.program.c_str(), argument_pointers.data(), environment_pointers.data(), parent, out[1], err[1]);
  }
  setpgid(child.pid, child.pid);  // also here: whoever comes first, the group exists before it is signalled
  close(out[1]);
  close(err[1]);
  child.out = out[0];
  child.err = err[0];
  child.running = true;
  return child;
}

}  // namespace fsdp::app
