#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// "512 B", "1.5 KiB", "231.6 MiB", "12.3 GiB".
std::string format_bytes(int64_t bytes);

// "57.9M", "3.08B", "15.00T", "912".
std::string format_count(int64_t count);

}  // namespace fsdp
