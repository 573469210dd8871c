#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "app/launch/exit_status.h"
#include "app/launch/verb_library.h"

namespace fsdp::app {

// A program to start and what to change in the environment for it.
struct ChildCommand {
  RunVerb run_verb = nullptr;          // called in a copy of this process, which has one thread; null: `program` runs
  std::string program;                 // looked up in PATH if it has no '/'
  std::vector<std::string> arguments;  // argv, the name of the program included
  std::map<std::string, std::string> environment;
};

// A process of one rank, in a process group of its own, that the kernel kills should the launcher die. What it starts
// is in its group and, once orphaned, a child of the launcher (adopt_orphans).
struct Child {
  pid_t pid = -1;
  int out = -1;  // read end of its standard output, non-blocking
  int err = -1;
  bool running = false;
  bool stopped = false;    // by SIGSTOP or the like: no signal but KILL reaches it until it is continued
  bool has_heirs = false;  // it ended, and processes of its group have not
  ExitStatus status;       // once it is not running
};

// From here on, processes that lose their parent below this one become its children.
void adopt_orphans();

// Starts `command` with standard input from /dev/null, and without descriptors that are closed on exec. Throws
// fsdp::Error if the system refuses; a program that cannot be executed says so on its standard error and exits with
// code 2.
Child start_child(const ChildCommand& command);

// Takes in what became of the children since the last call, without waiting, and reaps orphans. Returns the indices of
// those that ended.
std::vector<size_t> collect_ended(std::vector<Child>& children);

// To the process and all of its group that is left, if anything is.
void send_signal(const Child& child, int number);

}  // namespace fsdp::app
