#include <array>
#include <string_view>

#include "report/chart.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

struct Sign {
  std::string_view kind;
  const char* style;  // of the page: bad, odd or good
  const char* path;   // around 0,0, within 5 on each side
};

// Different shapes, so that they are told apart without their colours.
constexpr std::array<Sign, 11> kSigns = {{
    {"resumed", "good", "M-4-5L5 0L-4 5Z"},
    {"committed", "calm", "M0-5V5"},
    {"save_failed", "bad", "M0-5V1M0 3V5M-4-5H4"},
    {"spike", "odd", "M0-5L5 4H-5Z"},
    {"skipped", "bad", "M-4-4L4 4M4-4L-4 4"},
    {"rolled_back", "bad", "M4-5L-5 0L4 5ZM-5-5V5"},
    {"passing_error", "bad", "M0-5L5 0L0 5L-5 0Z"},
    {"slow_rank", "odd", "M-4-5H4L-4 5H4Z"},
    {"stopped", "calm", "M-4-4H4V4H-4Z"},
    {"ended", "good", "M-5 0L-1 4L5-4"},
    {"failed", "bad", "M-5-5H5V5H-5ZM-5-5L5 5M5-5L-5 5"},
}};

const Sign* find_sign(std::string_view kind) {
  for (const Sign& sign : kSigns)
    if (sign.kind == kind) return &sign;
  return nullptr;
}

}  // namespace

bool has_sign(const std::string& kind) { return find_sign(kind) != nullptr; }

std::string sign_path(const std::string& kind) {
  const Sign* sign = find_sign(kind);
  return sign == nullptr ? "" : std::string("class=\"sign ") + sign->style + "\" d=\"" + sign->path + "\"";
}

std::string draw_sign(const std::string& kind) {
  return "<svg class=\"key\" viewBox=\"-7 -7 14 14\" width=\"14\" height=\"14\"><path " + sign_path(kind) + "/></svg>";
}

}  // namespace fsdp::report
