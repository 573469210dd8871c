#pragma once

#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace fsdp::train {

using Cores = std::vector<int>;  // numbers of the system, ascending

// Those this thread may run on.
Cores available_cores();

// What is left to the rank at `place` among the ranks of a host, of which each may run on `cores_of[i]`. A launcher
// that gave each rank cores of its own is obeyed; cores that several ranks may use are dealt out among them, in runs as
// long as possible. Ranks that outnumber the cores they share all keep them.
Cores share_of_cores(const std::vector<Cores>& cores_of, size_t place);

struct ThreadPlan {
  int threads = 1;        // of LibTorch, in this rank
  int ranks = 1;          // of this host
  Cores cores;            // that they run on
  bool is_bound = false;  // to cores that no other rank of the host uses
};

// Decides it, sets LibTorch's threads and binds this thread, and so the threads that it starts, to its cores.
// OMP_NUM_THREADS, where set, is the number of threads; FSDP_BIND=off leaves the system to choose among cores. Call it
// before anything computes. COLLECTIVE.
ThreadPlan set_threads(const World& world);

// "2 rank(s) of this host x 1 thread(s), each bound to its own cores"
std::string describe(const ThreadPlan& plan);

}  // namespace fsdp::train
