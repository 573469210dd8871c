#include "train/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

namespace fsdp::train {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int set_threads(int local_size) {
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const int wanted = chosen != nullptr ? std::atoi(chosen) : 0;
  const int threads = wanted > 0 ? wanted : std::max(1, available_cores() / std::max(1, local_size));
  at::set_num_threads(threads);
  return threads;
}

}  // namespace fsdp::train
