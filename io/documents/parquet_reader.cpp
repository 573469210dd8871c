#include "io/documents/parquet_reader.h"

#include "io/error.h"

namespace fsdp::io {

std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const DocumentOptions&) {
  throw Error(ErrorKind::kUsage, "[read] " + in_quotes(path.native()) + ": got parquet, expected text or JSON lines.");
}

}  // namespace fsdp::io
