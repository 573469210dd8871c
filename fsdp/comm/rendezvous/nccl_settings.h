#pragma once

#include <string>

namespace fsdp::comm {

// Sets variables that c10d's NCCL groups read when they are made, so that a collective that hangs leaves a record of
// the last calls and ends the process rather than waiting on. What the user has set, under its present or its older
// name, stays; but TORCH_NCCL_ASYNC_ERROR_HANDLING=1, which torchrun exports to all workers, becomes 3, because mode 1
// ends a process before the record is written.
//   TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_NCCL_ASYNC_ERROR_HANDLING=3
//   TORCH_FR_DUMP_TEMP_FILE=<dump_folder>/nccl-rank, to which c10d adds the rank; only if there is a folder
// Local. Call it before other threads read the environment.
void set_nccl_defaults(const std::string& dump_folder);

}  // namespace fsdp::comm
