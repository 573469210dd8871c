#include "plan/memory_picture.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "fsdp/base/units.h"
#include "plan/picture/xml_text.h"

namespace fsdp::plan {
namespace {

constexpr int kWidth = 920, kLeft = 20, kBarWidth = 880, kBarHeight = 34, kLineHeight = 20;

// In the order of Part. Of medium lightness, so that they stand out from white and from black.
constexpr std::array<const char*, kNumParts> kColors = {"#4477aa", "#66aadd", "#228866", "#88bb44",
                                                        "#cc8833", "#bb5544", "#998877", "#aa4499",
                                                        "#7766bb", "#55aa99", "#888888"};

constexpr const char* kStyle =
    "<style>text{font:13px system-ui,sans-serif;fill:#1a1a1a}.title{font-weight:600}.small{font-size:12px}"
    ".limit{stroke:#1a1a1a;stroke-width:1.5;stroke-dasharray:4 3}.ground{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e8e8e8}.limit{stroke:#e8e8e8}.ground{fill:#16181c}}</style>\n";

std::string decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string rectangle(double x, double y, double width, double height, const std::string& rest) {
  return "<rect x=\"" + decimal(x) + "\" y=\"" + decimal(y) + "\" width=\"" + decimal(width) + "\" height=\"" +
         decimal(height) + "\" " + rest;
}

std::string label(double x, double y, const std::string& kind, const std::string& text) {
  return "<text class=\"" + kind + "\" x=\"" + decimal(x) + "\" y=\"" + decimal(y) + "\">" + xml_text(text) +
         "</text>\n";
}

class Picture {
 public:
  Picture(const std::vector<MemoryBar>& bars, int64_t limit) : bars_(bars), limit_(limit) {
    for (const MemoryBar& bar : bars) largest_ = std::max(largest_, bar.memory.total());
    largest_ = std::max(largest_, limit);
  }

  std::string draw() {
    double y = 16;
    for (const MemoryBar& bar : bars_) y = draw_bar(bar, y);
    const auto height = static_cast<int>(y);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + std::to_string(kWidth) + " " +
           std::to_string(height) + "\" width=\"" + std::to_string(kWidth) + "\" role=\"img\">\n" + kStyle +
           "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n" + body_ + "</svg>\n";
  }

 private:
  double scaled(int64_t bytes) const {
    return largest_ > 0 ? kBarWidth * static_cast<double>(bytes) / static_cast<double>(largest_) : 0;
  }

  // Returns where the next one begins.
  double draw_bar(const MemoryBar& bar, double y) {
    // Setups are long: what follows a semicolon has a line of its own.
    const size_t end = std::min(bar.title.size(), bar.title.find("; "));
    body_ += label(kLeft, y + 12, "title", format_bytes(bar.memory.total()) + ": " + bar.title.substr(0, end));
    y += kLineHeight;
    if (end < bar.title.size()) {
      body_ += label(kLeft, y + 10, "small", bar.title.substr(end + 2));
      y += kLineHeight;
    }
    double x = kLeft;
    for (size_t i = 0; i < kNumParts; ++i) {
      const auto part = static_cast<Part>(i);
      const double width = scaled(bar.memory[part]);
      if (width <= 0) continue;
      body_ += rectangle(x, y, width, kBarHeight, std::string("fill=\"") + kColors[i] + "\"><title>") +
               std::string(name(part)) + ": " + format_bytes(bar.memory[part]) + "</title></rect>\n";
      x += width;
    }
    if (limit_ > 0) draw_limit(y);
    return draw_legend(bar, y + kBarHeight + 16);
  }

  void draw_limit(double y) {
    const std::string x = decimal(kLeft + scaled(limit_));
    body_ += "<line class=\"limit\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"" + decimal(y - 4) + "\" y2=\"" +
             decimal(y + kBarHeight + 4) + "\"><title>" + format_bytes(limit_) + " per rank</title></line>\n";
  }

  double draw_legend(const MemoryBar& bar, double y) {
    constexpr int kColumns = 3;
    int drawn = 0;
    const auto next_place = [&] {
      const int row = drawn / kColumns, column = drawn % kColumns;
      ++drawn;
      return std::pair(kLeft + column * (kBarWidth / kColumns), y + row * kLineHeight);
    };
    for (size_t i = 0; i < kNumParts; ++i) {
      const auto part = static_cast<Part>(i);
      if (bar.memory[part] == 0) continue;
      const auto [x, top] = next_place();
      body_ += rectangle(x, top - 10, 11, 11, std::string("fill=\"") + kColors[i] + "\"/>\n");
      body_ += label(x + 17, top, "small", std::string(name(part)) + "  " + format_bytes(bar.memory[part]));
    }
    if (limit_ > 0) {
      const auto [x, top] = next_place();
      body_ += label(x, top, "small", "- - -  a rank has " + format_bytes(limit_));
    }
    const int rows = (drawn + kColumns - 1) / kColumns;
    return y + rows * kLineHeight + 18;
  }

  const std::vector<MemoryBar>& bars_;
  int64_t limit_;
  int64_t largest_ = 0;
  std::string body_;
};

}  // namespace

std::string memory_picture(const std::vector<MemoryBar>& bars, int64_t limit) { return Picture(bars, limit).draw(); }

}  // namespace fsdp::plan
