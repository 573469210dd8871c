#pragma once

#include <memory>

#include "io/documents/document_reader.h"

namespace fsdp::io {

// Reads the column options.text_field of a parquet file through the plug-in (io/documents/parquet_plugin.h), which is
// loaded when the first file is opened. Throws Error(kUsage) where there is no plug-in, saying how to get it.
std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const DocumentOptions& options);

}  // namespace fsdp::io
