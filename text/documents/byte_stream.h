#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "io/base/input_file.h"

namespace fsdp::io {

enum class Compression { kNone, kGzip, kZstd };

// By the end of its name: .gz, .zst.
Compression compression_of(const std::filesystem::path& path);

// The content of a file from front to back, decompressed, in bounded memory. Not thread-safe.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `num_bytes` (at least 1) bytes; 0 at the end only. Throws Error(kData) naming file and byte if the stream is
  // corrupt or cut off; what was returned before is good as far as the format can tell.
  virtual size_t read(char* out, size_t num_bytes) = 0;
  virtual uint64_t bytes_consumed() const = 0;  // of the file on disk
};

// A zstd frame that needs a window of more bytes than 2 to this power is refused; what `zstd` itself takes by default.
inline constexpr int kMaxZstdWindowLog = 27;

std::unique_ptr<ByteStream> make_plain_stream(InputFile file);
// One gzip member or several; zeros behind them are padding.
std::unique_ptr<ByteStream> make_gzip_stream(InputFile file);
// One frame or several, skippable frames among them.
std::unique_ptr<ByteStream> make_zstd_stream(InputFile file, int max_window_log = kMaxZstdWindowLog);

// Text hardly compresses to a hundredth: a file of which this many times its own bytes have come, beyond the first 64
// MiB, is made to fill a disk.
inline constexpr uint64_t kMaxExpansion = 1000;
inline constexpr uint64_t kMaxExpansionFrom = uint64_t{64} << 20;

// Compressed as its name says, and limited by the two above. Throws Error(kData) beyond them.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

}  // namespace fsdp::io
