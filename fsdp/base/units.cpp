#include "fsdp/base/units.h"

#include <array>
#include <cstdio>

namespace fsdp {
namespace {

std::string with_suffix(double value, const char* suffix, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f%s", digits, value, suffix);
  return text.data();
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= kGiB) return with_suffix(value / kGiB, " GiB", 2);
  if (bytes >= kMiB) return with_suffix(value / kMiB, " MiB", 1);
  if (bytes >= kKiB) return with_suffix(value / kKiB, " KiB", 1);
  return std::to_string(bytes) + " B";
}

std::string format_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000'000) return with_suffix(value / 1e12, "T", 2);
  if (count >= 1'000'000'000) return with_suffix(value / 1e9, "B", 2);
  if (count >= 1'000'000) return with_suffix(value / 1e6, "M", 1);
  if (count >= 10'000) return with_suffix(value / 1e3, "K", 1);
  return std::to_string(count);
}

}  // namespace fsdp
