#pragma once

#include "io/base/file_ops.h"

namespace fsdp::checkpoint {

// The system's files, with a fault point before every operation: file.make_folder, file.create, file.reserve,
// file.write, file.sync, file.rename, file.exchange, file.remove, file.sync_folder.
io::FileOps& checked_files();

}  // namespace fsdp::checkpoint
