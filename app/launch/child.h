#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace fsdp::app {

// A program to start and what to change in the environment for it.
struct ChildCommand {
  std::string program;                 // looked up in PATH if it has no '/'
  std::vector<std::string> arguments;  // argv, the name of the program included
  std::map<std::string, std::string> environment;
};

// A process of one rank, in a process group of its own, that the kernel kills should the launcher die.
struct Child {
  pid_t pid = -1;
  int out = -1;  // read end of its standard output, non-blocking
  int err = -1;
  bool running = false;
  int status = 0;  // of waitpid, once it is not running
};

// Starts `command` with standard input from /dev/null. Throws fsdp::Error if the system refuses; a program that cannot
// be executed says so on its standard error and exits with code 2.
Child start_child(const ChildCommand& command);

}  // namespace fsdp::app
