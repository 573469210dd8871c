#include "report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "plan/picture/xml_text.h"
#include "report/plot_frame.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

constexpr double kLaneHeight = 17;
constexpr double kLabelHeight = 14;
constexpr double kCharacterWidth = 7.2;

constexpr std::array<const char*, kMostRuns> kMarks = {
    "M-3.5 0A3.5 3.5 0 1 0 3.5 0A3.5 3.5 0 1 0-3.5 0Z",   // circle
    "M-3.2-3.2H3.2V3.2H-3.2Z",                            // square
    "M0-4.4L4 3H-4Z",                                     // triangle
    "M0-4.6L4.6 0L0 4.6L-4.6 0Z",                         // lozenge
    "M0 4.4L4-3H-4Z",                                     // triangle on its head
    "M-4-1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z",  // plus
    "M-3.4-4L0-1.6L3.4-4V4L0 1.6L-3.4 4Z",                // bow tie
    "M-4-2H4V2H-4Z",                                      // bar
};

std::string run_class(int run) { return "r" + std::to_string(run % kMostRuns); }

bool is_drawable(const Point& point, AxisScale scale) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (scale == AxisScale::kEven || point.y > 0);
}

// Of many points for one pixel column the first, the lowest, the highest and the last.
std::vector<Point> thinned(const std::vector<Point>& points, const PlotFrame& frame) {
  const auto columns = static_cast<size_t>(frame.right() - frame.left());
  if (points.size() <= 2 * columns) return points;
  std::vector<Point> kept;
  for (size_t begin = 0; begin < points.size();) {
    const auto column = std::floor(frame.x(points[begin].x));
    size_t end = begin, low = begin, high = begin;
    for (; end < points.size() && std::floor(frame.x(points[end].x)) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    for (const size_t i : std::set<size_t>{begin, low, high, end - 1}) kept.push_back(points[i]);
    begin = end;
  }
  return kept;
}

// The highest value that is shown: a few that stand out far above the others would press these flat.
double shown_top(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double top = values.back();
  const double usual = values[(values.size() - 1) * 97 / 100];
  const double low = values.front();
  return values.size() >= 30 && top - low > 2.5 * (usual - low) && usual > low ? low + 1.25 * (usual - low) : top;
}

Range values_of(const Chart& chart) {
  std::vector<double> values;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (is_drawable(point, chart.scale)) values.push_back(point.y);
  if (values.empty()) return {0, -1};
  Range range{*std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end())};
  if (chart.scale == AxisScale::kLog) return {range.low / 1.15, range.high * 1.15};
  range.high = shown_top(values);
  if (chart.start == AxisStart::kZero && range.low >= 0) return {0, range.high > 0 ? 1.06 * range.high : 1};
  range = widened(range);
  const double edge = 0.06 * (range.high - range.low);
  return {range.low >= 0 ? std::max(0.0, range.low - edge) : range.low - edge, range.high + edge};
}

class ChartDrawing {
 public:
  ChartDrawing(const Chart& chart, Shape shape, Range values)
      : chart_(chart),
        values_(values),
        lanes_(lanes_of(chart)),
        frame_(shape, steps_of(chart.series), values, chart.scale, chart.unit, label_room(chart),
               kLaneHeight * static_cast<double>(lanes_.size())) {}

  std::string draw() {
    std::string svg = frame_.open(chart_.title) + frame_.grid();
    svg += draw_lanes();
    for (const Stroke stroke : {Stroke::kFaint, Stroke::kLine, Stroke::kPoints})
      for (const Series& series : chart_.series)
        if (series.stroke == stroke) svg += draw_series(series);
    return svg + draw_labels() + draw_cut() + "</svg>\n";
  }

 private:
  struct Label {
    double x, y;
    int run;
    std::string text;
  };

  static std::vector<int> lanes_of(const Chart& chart) {
    std::set<int> runs;
    for (const Mark& mark : chart.marks) runs.insert(mark.run);
    return {runs.begin(), runs.end()};
  }

  static double label_room(const Chart& chart) {
    size_t longest = 0;
    for (const Series& series : chart.series) longest = std::max(longest, series.label.size());
    return 26 + kCharacterWidth * static_cast<double>(longest);
  }

  double clamped(double value) const { return frame_.y(std::clamp(value, values_.low, values_.high)); }

  std::string draw_series(const Series& series) {
    const char* kind = series.stroke == Stroke::kLine ? "line" : series.stroke == Stroke::kFaint ? "faint" : "thin";
    std::string path, marks;
    bool pen_down = false;
    const Point* last = nullptr;
    for (const Point& point : thinned(series.points, frame_)) {
      if (!is_drawable(point, chart_.scale)) {
        pen_down = false;
        continue;
      }
      if (point.y > values_.high) ++num_cut_;
      path += (pen_down ? "L" : "M") + pixel(frame_.x(point.x)) + " " + pixel(clamped(point.y));
      pen_down = true;
      if (series.stroke == Stroke::kPoints)
        marks += run_mark(series.run, frame_.x(point.x), clamped(point.y), "hollow");
    }
    for (const Point& point : series.points)
      if (is_drawable(point, chart_.scale)) last = &point;
    if (last == nullptr) return "";
    if (series.stroke == Stroke::kLine) marks = run_mark(series.run, frame_.x(last->x), clamped(last->y), "full");
    if (!series.label.empty()) labels_.push_back({frame_.x(last->x) + 9, clamped(last->y), series.run, series.label});
    return "<path class=\"" + std::string(kind) + " " + run_class(series.run) + "\" data-name=\"" +
           plan::xml_text(letter(series.run) + " " + series.name) + "\" d=\"" + path + "\"/>" + marks + "\n";
  }

  // Labels that would stand on each other are moved apart; all stay within the plot.
  std::string draw_labels() {
    std::stable_sort(labels_.begin(), labels_.end(), [](const Label& a, const Label& b) { return a.y < b.y; });
    double free = frame_.top() + 4;
    for (Label& label : labels_) free = (label.y = std::max(label.y, free)) + kLabelHeight;
    double lowest = frame_.bottom();
    for (auto label = labels_.rbegin(); label != labels_.rend(); ++label)
      lowest = (label->y = std::min(label->y, lowest)) - kLabelHeight;
    std::string svg;
    for (const Label& label : labels_) {
      svg += "<text class=\"label " + run_class(label.run) + "\" x=\"" + pixel(label.x) + "\" y=\"" +
             pixel(label.y + 4) + "\">" + plan::xml_text(label.text) + "</text>";
    }
    return svg;
  }

  std::string draw_lanes() const {
    std::string svg;
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      const double y = frame_.bottom() + kLaneHeight * (static_cast<double>(lane) + 0.5) + 1;
      svg += "<text class=\"label " + run_class(lanes_[lane]) + "\" text-anchor=\"end\" x=\"" +
             pixel(frame_.left() - 8) + "\" y=\"" + pixel(y + 4) + "\">" + letter(lanes_[lane]) + "</text>";
      std::map<std::string, double> drawn_to;  // of signs on each other one is enough
      for (const Mark& mark : chart_.marks) {
        if (mark.run != lanes_[lane]) continue;
        const auto [last, is_first] = drawn_to.try_emplace(mark.kind, frame_.x(mark.x));
        if (!is_first && std::abs(frame_.x(mark.x) - last->second) < 2) continue;
        last->second = frame_.x(mark.x);
        svg += draw_mark(mark, y);
      }
    }
    return svg;
  }

  // Where a run began again, a line through the plot: what is left of it was computed by another process.
  std::string draw_mark(const Mark& mark, double y) const {
    const double x = std::clamp(frame_.x(mark.x), frame_.left(), frame_.right());
    const bool is_cut = mark.kind == "resumed" || mark.kind == "rolled_back";
    return (is_cut ? "<path class=\"since " + run_class(mark.run) + "\" d=\"M" + pixel(x) + " " + pixel(frame_.top()) +
                         "V" + pixel(frame_.bottom()) + "\"/>"
                   : "") +
           "<g transform=\"translate(" + pixel(x) + " " + pixel(y) + ")\"><path " + sign_path(mark.kind) + "/><title>" +
           plan::xml_text(mark.text) + "</title></g>\n";
  }

  std::string draw_cut() const {
    if (num_cut_ == 0) return "";
    return "<text class=\"tick\" x=\"" + pixel(frame_.left() + 6) + "\" y=\"" + pixel(frame_.top() + 11) + "\">" +
           std::to_string(num_cut_) + (num_cut_ == 1 ? " point is" : " points are") + " above</text>";
  }

  const Chart& chart_;
  Range values_;
  std::vector<int> lanes_;  // the run of each
  PlotFrame frame_;
  std::vector<Label> labels_;
  int num_cut_ = 0;
};

}  // namespace

std::string letter(int run) { return std::string(1, static_cast<char>('A' + run)); }

std::string pixel(double value) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.2f", value);
  std::string digits = text;
  while (digits.back() == '0') digits.pop_back();
  if (digits.back() == '.') digits.pop_back();
  return digits == "-0" ? "0" : digits;
}

std::string run_mark(int run, double x, double y, const char* style) {
  return "<path class=\"" + std::string(style) + " " + run_class(run) + "\" transform=\"translate(" + pixel(x) + " " +
         pixel(y) + ")\" d=\"" + kMarks[static_cast<size_t>(run % kMostRuns)] + "\"/>";
}

std::string draw_key(int run) {
  return "<svg class=\"key\" viewBox=\"0 0 46 14\" width=\"46\" height=\"14\" aria-hidden=\"true\"><path "
         "class=\"line " +
         run_class(run) + "\" d=\"M1 7H38\"/>" + run_mark(run, 39, 7, "full") + "</svg>";
}

std::string draw_chart(const Chart& chart, Shape shape) {
  const Range values = values_of(chart);
  if (values.low > values.high) return "";
  return ChartDrawing(chart, shape, values).draw();
}

}  // namespace fsdp::report
