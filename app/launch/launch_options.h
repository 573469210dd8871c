#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/restart_policy.h"
#include "app/launch/verb_library.h"

namespace fsdp::app {

struct LaunchOptions {
  int nproc = 1;
  int cores = 1;               // of this host, that ranks may run on
  std::optional<int> threads;  // of each rank; unset: the user gave OMP_NUM_THREADS
  bool prefix = true;
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // for ranks that are asked to stop
  RestartLimits restarts;
  RunVerb run_verb = nullptr;          // what each rank runs, in a copy of the launcher; null: `program`
  std::string program;                 // looked up in PATH if it has no '/'
  std::vector<std::string> arguments;  // argv of each rank
  std::string made_secret;             // of the job; empty: the user gave one, which ranks inherit
};

}  // namespace fsdp::app
