#include "tests/app/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <thread>

namespace fsdp::app {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void become(const std::vector<std::string>& words, const std::vector<std::string>& environment, int out,
                         int err) {
  setpgid(0, 0);
  for (const char* name : {"FSDP_LAUNCH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_USE_AGENT_STORE", "FSDP_JOB_SECRET", "FSDP_JOB_SECRET_FILE"}) {
    unsetenv(name);
  }
  for (const std::string& entry : environment) {
    putenv(const_cast<char*>(entry.c_str()));
  }
  std::vector<char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

void read_all(int descriptor, std::string& text) {
  char buffer[4096];
  for (ssize_t size = 0; (size = read(descriptor, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  close(descriptor);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                          std::chrono::seconds limit) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "cannot make pipes";
    return {};
  }
  const auto begin = Clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    become(words, environment, out[1], err[1]);
  }
  close(out[1]);
  close(err[1]);
  CommandResult result;
  std::thread out_reader([&] { read_all(out[0], result.out); });
  std::thread err_reader([&] { read_all(err[0], result.err); });
  int status = 0;
  bool killed = false;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (!killed && Clock::now() - begin > limit) {
      kill(-pid, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  kill(-pid, SIGKILL);  // what it left behind
  out_reader.join();
  err_reader.join();
  EXPECT_FALSE(killed) << words[0] << " did not end in time; it said\n" << result.out << result.err;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

CommandResult run_fsdp(const std::string& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> words{FSDP_BINARY};
  std::istringstream stream(arguments);
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  std::vector<std::string> variables = environment;
  variables.emplace_back("OMP_NUM_THREADS=1");  // machines that run tests are busy, and spinning threads make it worse
  return run_command(words, variables);
}

CommandResult launch_fsdp(int ranks, const std::string& arguments, const std::vector<std::string>& environment) {
  return run_fsdp("launch --nproc " + std::to_string(ranks) + " -- " + arguments, environment);
}

}  // namespace fsdp::app
