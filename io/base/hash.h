#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace fsdp::io {

// XXH3-64 of a whole file, read in pieces. A missing file is Error(kind).
uint64_t hash_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);

// XXH3-64 of some bytes.
uint64_t hash_bytes(std::string_view bytes);

// 16 lower-case hexadecimal digits, as manifests store a hash.
std::string hash_text(uint64_t hash);

}  // namespace fsdp::io
