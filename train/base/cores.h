#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace fsdp::train {

using Cores = std::vector<int>;  // numbers of the system, ascending

// Those this thread may run on.
inline Cores available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace fsdp::train
