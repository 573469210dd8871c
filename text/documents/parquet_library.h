#pragma once

#include "text/documents/parquet_plugin.h"

namespace fsdp::io {

// The plug-in: the file that the variable FSDP_PARQUET_PLUGIN names, else libfsdp_parquet.so beside the running program
// or along its RPATH. Loaded once and never unloaded; thread-safe. Throws Error(kUsage) where there is none, saying how
// to get it.
const FsdpParquetPlugin& parquet_plugin();

}  // namespace fsdp::io
