// How the launcher starts a rank that is a copy of itself.
#include "app/launch/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "app/launch/process_title.h"

namespace fsdp::app {
namespace {

// Stands for a verb: tells what it was given, and ends.
void tell(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) std::printf("<%s>", argv[i]);
  std::printf(" end of arguments %s null", argv[argc] == nullptr ? "is" : "is not");
  std::printf(" RANK=%s HOME_OF_TEST=%s", std::getenv("RANK"), std::getenv("HOME_OF_TEST"));
  for (const char* name : {"TEST_CLOSED", "TEST_KEPT"}) {
    std::printf(" %s %s", name, fcntl(std::atoi(std::getenv(name)), F_GETFD) < 0 ? "is closed" : "is open");
  }
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  std::printf(" TERM %s", sigismember(&blocked, SIGTERM) != 0 ? "is blocked" : "gets through");
  std::printf(" input ends %d", static_cast<int>(std::getchar() == EOF));
  std::fprintf(stderr, "to the other stream");
  std::fflush(nullptr);
  _exit(7);
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = read(descriptor, buffer, sizeof(buffer))) > 0;) text.append(buffer, buffer + size);
  close(descriptor);
  return text;
}

void wait_until_ended(std::vector<Child>& children) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (collect_ended(children).empty()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(LaunchChild, ACopyHasWhatAProgramWouldHaveThatWasExecuted) {
  const int closed = open("/dev/null", O_RDONLY | O_CLOEXEC), kept = open("/dev/null", O_RDONLY);
  ASSERT_GE(closed, 0);
  ASSERT_GE(kept, 0);
  setenv("HOME_OF_TEST", "the launcher's", 1);
  setenv("RANK", "the launcher's", 1);
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);

  ChildCommand command;
  command.run_verb = tell;
  command.arguments = {"fsdp", "train", "a b", ""};
  command.environment = {{"RANK", "3"}, {"TEST_CLOSED", std::to_string(closed)}, {"TEST_KEPT", std::to_string(kept)}};
  std::vector<Child> children{start_child(command)};
  wait_until_ended(children);
  sigprocmask(SIG_SETMASK, &before, nullptr);

  EXPECT_EQ(exit_code(children[0].status), 7);
  EXPECT_EQ(read_all(children[0].out),
            "<fsdp><train><a b><> end of arguments is null RANK=3 HOME_OF_TEST=the launcher's TEST_CLOSED is closed "
            "TEST_KEPT is open TERM gets through input ends 1");
  EXPECT_EQ(read_all(children[0].err), "to the other stream");
  EXPECT_STREQ(std::getenv("RANK"), "the launcher's") << "the launcher's own environment changed";
  EXPECT_GE(fcntl(closed, F_GETFD), 0) << "the launcher's own descriptor was closed";
  close(closed);
  close(kept);
  unsetenv("RANK");
}

TEST(LaunchChild, TheTitleOfAProcessIsWrittenOverItsArguments) {
  std::string memory("fsdp\0launch\0--nproc\0002\0train\0run.toml\0", 37);
  std::vector<char*> arguments{memory.data(),      memory.data() + 5,  memory.data() + 12,
                               memory.data() + 20, memory.data() + 22, memory.data() + 28};
  ASSERT_STREQ(arguments.back(), "run.toml");
  arguments.push_back(nullptr);
  std::string variables("HOME=/\0A=b\0", 11), elsewhere("SET=later");
  std::vector<char*> environment{variables.data(), variables.data() + 7, elsewhere.data(), nullptr};
  keep_title_at(6, arguments.data(), environment.data());
  show_title({"fsdp", "train", "run.toml"}, {"RANK=1"});
  EXPECT_EQ(memory, std::string("fsdp\0train\0run.toml", 19) + std::string(memory.size() - 19, '\0'));
  EXPECT_EQ(variables, std::string("RANK=1\0\0\0\0\0", 11));
  show_title({std::string(100, 'x')}, {"RANK=1", "HOME=/"});
  EXPECT_EQ(memory, std::string(memory.size() - 1, 'x') + '\0') << "cut before what is behind the last argument";
  EXPECT_EQ(variables, std::string("RANK=1\0HOM\0", 11));
  EXPECT_EQ(elsewhere, "SET=later");
}

}  // namespace
}  // namespace fsdp::app
