#pragma once

#include <cstdint>
#include <memory>

#include "text/documents/document_reader.h"

namespace fsdp::io {

// What Arrow's buffers may hold at a time. A page may claim 2 GiB; none that is written on purpose comes near that.
inline constexpr int64_t kMaxParquetMemory = int64_t{2} << 30;  // bytes

// Reads the column options.text_field of a parquet file through the plug-in (text/documents/parquet_plugin.h), which is
// loaded when the first file is opened. Throws Error(kUsage) where there is no plug-in, saying how to get it.
std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const DocumentOptions& options,
                                                    int64_t max_memory = kMaxParquetMemory);

}  // namespace fsdp::io
