#include "report/plot_frame.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/picture/xml_text.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

constexpr double kFootHeight = 24;  // numbers of the steps
constexpr double kCharacter = 6.6;  // width of one, about
constexpr double kPercentSign = 12.5;

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "bytes";
    case Unit::kPercent:
      return "percent";
    case Unit::kMilliseconds:
      return "ms";
    case Unit::kPlain:
      return "plain";
  }
  return "plain";
}

std::vector<double> value_ticks(Range values, AxisScale scale, Unit unit, int count) {
  return scale == AxisScale::kLog ? log_ticks(values.low, values.high)
                                  : even_ticks(values.low, values.high, count, unit);
}

double width_of(const std::string& text) {
  double width = 0;
  for (const char character : text) width += character == '%' ? kPercentSign : kCharacter;
  return width;
}

}  // namespace

Range widened(Range range) {
  if (!(range.low <= range.high)) return {0, 1};
  if (range.low < range.high) return range;
  const double part = range.low == 0 ? 1 : 0.1 * std::abs(range.low);
  return {range.low - part, range.high + part};
}

Range steps_of(const std::vector<Series>& series) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const Series& line : series) {
    for (const Point& point : line.points) {
      if (!std::isfinite(point.y)) continue;
      range.low = std::min(range.low, point.x);
      range.high = std::max(range.high, point.x);
    }
  }
  return range;
}

PlotFrame::PlotFrame(Shape shape, Range steps, Range values, AxisScale scale, Unit unit, double right, double lanes)
    : steps_(widened(steps)), values_(values), scale_(scale), unit_(unit), lanes_(lanes), wide_(shape == Shape::kWide) {
  width_ = wide_ ? 1080 : 430;
  top_ = 10;
  bottom_ = top_ + (wide_ ? 330 : 190);
  height_ = bottom_ + lanes + kFootHeight;
  right_ = width_ - right;
  double widest = 3 * kCharacter;
  for (const double tick : value_ticks(values_, scale_, unit_, 5))
    widest = std::max(widest, width_of(number_text(tick, unit_)));
  left_ = 12 + widest;
}

double PlotFrame::x(double step) const {
  return left_ + (right_ - left_) * (step - steps_.low) / (steps_.high - steps_.low);
}

double PlotFrame::y(double value) const {
  double part = (value - values_.low) / (values_.high - values_.low);
  if (scale_ == AxisScale::kLog) part = std::log(value / values_.low) / std::log(values_.high / values_.low);
  return bottom_ - (bottom_ - top_) * part;
}

std::string PlotFrame::open(const std::string& title) const {
  const auto data = [](const char* name, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), " data-%s=\"%.9g\"", name, value);
    return std::string(text);
  };
  return "<svg class=\"chart " + std::string(wide_ ? "wide" : "compact") + "\" viewBox=\"0 0 " + pixel(width_) + " " +
         pixel(height_) + "\" role=\"img\" aria-label=\"" + plan::xml_text(title) + "\"" + data("left", left_) +
         data("right", right_) + data("top", top_) + data("bottom", bottom_) + data("from", steps_.low) +
         data("to", steps_.high) + data("low", values_.low) + data("high", values_.high) + " data-scale=\"" +
         (scale_ == AxisScale::kLog ? "log" : "even") + "\" data-unit=\"" + unit_name(unit_) + "\">\n";
}

std::string PlotFrame::grid() const {
  std::string lines, words;
  for (const double tick : value_ticks(values_, scale_, unit_, wide_ ? 6 : 5)) {
    const std::string place = pixel(y(tick));
    lines += "M" + pixel(left_) + " " + place + "H" + pixel(right_);
    if (lanes_ > 0 && y(tick) > bottom_ - 6) continue;  // the first lane's letter stands there
    words += "<text class=\"tick\" text-anchor=\"end\" x=\"" + pixel(left_ - 6) + "\" y=\"" + pixel(y(tick) + 4) +
             "\">" + number_text(tick, unit_) + "</text>";
  }
  const double foot = bottom_ + lanes_;
  std::string marks;
  for (const double tick : even_ticks(steps_.low, steps_.high, wide_ ? 10 : 5, Unit::kPlain)) {
    if (tick != std::floor(tick)) continue;  // there are no half steps
    marks += "M" + pixel(x(tick)) + " " + pixel(foot) + "v4";
    if (x(tick) > width_ - 52) continue;  // the word does
    words += "<text class=\"tick\" text-anchor=\"middle\" x=\"" + pixel(x(tick)) + "\" y=\"" + pixel(foot + 17) +
             "\">" + number_text(tick) + "</text>";
  }
  words += "<text class=\"tick\" text-anchor=\"end\" x=\"" + pixel(width_ - 2) + "\" y=\"" + pixel(foot + 17) +
           "\">step</text>";
  return "<path class=\"grid\" d=\"" + lines + "\"/><path class=\"axis\" d=\"M" + pixel(left_) + " " + pixel(bottom_) +
         "H" + pixel(right_) + marks + "\"/>" + words + "\n";
}

}  // namespace fsdp::report
