#pragma once

#include <cstdint>
#include <string>

namespace fsdp::train {

// "41,210".
std::string with_thousands(int64_t number);

// "00:41:10".
std::string clock_text(double seconds);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

}  // namespace fsdp::train
