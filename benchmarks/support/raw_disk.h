// The disk without checkpoints: what saving and loading as many bytes could reach at best. Local; failures throw
// std::system_error.
#pragma once

#include <cstdint>
#include <filesystem>

namespace fsdp::benchmarks {

struct RawAccess {
  int threads = 1;        // that take pieces of 16 MiB in turns
  bool direct = true;     // past the page cache
  bool reserved = false;  // of a write: room for the file is taken first (fallocate)
};

// Writes a new file of `bytes` random bytes and returns once they survive a power failure.
void write_raw(const std::filesystem::path& file, int64_t bytes, const RawAccess& access);

// Reads the whole file, and keeps nothing.
void read_raw(const std::filesystem::path& file, const RawAccess& access);
// Of `parts` parts of it part number `part`, in whole pieces.
void read_raw_part(const std::filesystem::path& file, const RawAccess& access, int part, int parts);

// Reads `read` bytes and writes `written` of an existing file, again and again from its begin, mixed evenly. Returns
// when the system has them, which is no promise for a power failure.
void mix_raw(const std::filesystem::path& file, int64_t read, int64_t written, const RawAccess& access);

// All files of a folder: out of the page cache (those that are on the disk already), or into it.
void drop_from_cache(const std::filesystem::path& folder);
void bring_into_cache(const std::filesystem::path& folder);

// Positive floats below 0.016 that no disk can compress.
void fill_random(float* out, int64_t numel, uint64_t seed);

}  // namespace fsdp::benchmarks
