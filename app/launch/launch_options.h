#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "app/launch/restart_policy.h"

namespace fsdp::app {

struct LaunchOptions {
  int nproc = 1;
  int cores = 1;  // of this host, that ranks may run on
  bool prefix = true;
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // for ranks that are asked to stop
  RestartLimits restarts;
  std::string program;                 // looked up in PATH if it has no '/'
  std::vector<std::string> arguments;  // argv of each rank
  std::string made_secret;             // of the job; empty: the user gave one, which ranks inherit
};

}  // namespace fsdp::app
