#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace fsdp::io {

// What a JSON text may cost at most, and what its errors are called.
struct JsonLimits {
  uint64_t max_bytes = uint64_t{64} << 20;
  int max_depth = 64;                     // objects and arrays inside each other
  int64_t max_values = int64_t{1} << 24;  // a short text must not become gigabytes of nodes
  ErrorKind kind = ErrorKind::kData;      // of the Error thrown for a bad text
};

// Parses strict JSON in UTF-8. Refuses what nlohmann-json lets through: duplicate keys (the last would win silently)
// and unbounded depth. `origin` (a file name) starts every message, followed by line:column. Throws Error(limits.kind).
nlohmann::json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits = {});

// parse_json of a whole file. A missing file is Error(limits.kind) too.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

// `text` as a JSON string with its quotes. Throws Error(kUsage) if it is not UTF-8.
std::string json_string(std::string_view text);

}  // namespace fsdp::io
