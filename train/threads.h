#pragma once

namespace fsdp::train {

// Cores this process may run on.
int available_cores();

// Threads that LibTorch uses in this process: OMP_NUM_THREADS, or the cores divided by the ranks of this host. Sets
// them.
int set_threads(int local_size);

}  // namespace fsdp::train
