#pragma once

#include <memory>

#include "text/documents/byte_stream.h"
#include "text/documents/document_reader.h"

namespace fsdp::io {

// Readers of what a stream holds. `path` is for messages. REQUIRES: options that DocumentReader::open() takes.
std::unique_ptr<DocumentReader> make_text_reader(std::unique_ptr<ByteStream> stream, const std::filesystem::path& path,
                                                 const DocumentOptions& options);
std::unique_ptr<DocumentReader> make_json_lines_reader(std::unique_ptr<ByteStream> stream,
                                                       const std::filesystem::path& path,
                                                       const DocumentOptions& options);

}  // namespace fsdp::io
