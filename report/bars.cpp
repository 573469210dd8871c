#include "report/bars.h"

#include <algorithm>
#include <cmath>

#include "plan/picture/xml_text.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

constexpr double kBarsWidth = 760, kNamesWidth = 190, kTextWidth = 150, kBarStep = 24;

constexpr const char* kBarsStyle =
    "<style>text{font:13px "
    "system-ui,sans-serif;fill:#1b1f24}.title{font-size:15px;font-weight:600}.head{font-weight:600}"
    ".ground{fill:#fff}.bar{fill:#2f6fb0}@media(prefers-color-scheme:dark){text{fill:#e7ebef}.ground{fill:#14181d}"
    ".bar{fill:#4f92d6}}</style>\n";

std::string bars_text(double x, double y, const char* style, const std::string& text) {
  return std::string("<text class=\"") + style + "\" x=\"" + pixel(x) + "\" y=\"" + pixel(y) + "\">" +
         plan::xml_text(text) + "</text>\n";
}

std::string draw_group(const BarGroup& group, double& y) {
  double most = 0;
  for (const BarGroup::Bar& bar : group.bars)
    if (std::isfinite(bar.value)) most = std::max(most, bar.value);
  std::string svg = bars_text(16, y += 26, "head", group.title);
  for (const BarGroup::Bar& bar : group.bars) {
    y += kBarStep;
    const double room = kBarsWidth - kNamesWidth - kTextWidth;
    const double width = most > 0 && std::isfinite(bar.value) ? room * std::max(0.0, bar.value) / most : 0;
    svg += bars_text(16, y, "name", bar.name) + "<rect class=\"bar\" x=\"" + pixel(kNamesWidth) + "\" y=\"" +
           pixel(y - 13) + "\" width=\"" + pixel(width) + "\" height=\"17\"/>" +
           bars_text(kNamesWidth + width + 8, y, "name", bar.text);
  }
  y += 10;
  return svg;
}

}  // namespace

std::string draw_bars(const std::string& title, const std::vector<BarGroup>& groups) {
  double y = 26;
  std::string body = bars_text(16, y, "title", title);
  for (const BarGroup& group : groups) body += draw_group(group, y);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + pixel(kBarsWidth) + " " + pixel(y + 12) +
         "\" role=\"img\">\n" + kBarsStyle + "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n" + body +
         "</svg>\n";
}

}  // namespace fsdp::report
