#pragma once

#include <pthread.h>
#include <signal.h>

namespace fsdp {

// Signals belong to the program's own threads: from now on none comes to the calling thread and those it starts.
inline void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace fsdp
