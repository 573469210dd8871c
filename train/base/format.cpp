#include "train/base/format.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace fsdp::train {

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return (number < 0 ? "-" : "") + digits;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e8));
  return format_text("%02lld:%02lld:%02lld", static_cast<long long>(whole / 3600),
                     static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60));
}

std::string format_text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(static_cast<size_t>(std::max(size, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace fsdp::train
