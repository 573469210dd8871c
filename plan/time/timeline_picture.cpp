#include "plan/time/timeline_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "plan/picture/axis.h"
#include "plan/picture/xml_text.h"

namespace fsdp::plan::time {
namespace {

constexpr double kWidth = 1200, kLeft = 110, kRight = 20, kTop = 56, kRow = 34, kBar = 22;
constexpr double kNarrowest = 0.25;  // pixels; narrower bars are left out unless nothing stands there

const char* style_of(const Instruction& instruction) {
  switch (instruction.action) {
    case Action::kCompute:
      return instruction.pass == schedule::Pass::kForward ? "forward" : "backward";
    case Action::kStartGather:
      return "gather";
    case Action::kStartReduce:
      return "reduce";
    case Action::kWaitGather:
    case Action::kWaitReduce:
      return "wait";
    default:
      return "other";
  }
}

class Picture {
 public:
  Picture(const StepTime& time, const StepWork& work, const std::string& title)
      : time_(time), work_(work), scale_((kWidth - kLeft - kRight) / std::max(time.step_ms, 1e-9)) {
    begin(title);
    add_axis();
    add_row(0, "compute");
    add_row(1, "gathers");
    add_row(2, "reductions");
    add_row(3, "critical path");
    for (const Span& span : time.timeline.spans)
      add_bar(static_cast<int>(span.stream), style_of(span.instruction), describe(span.instruction, work_),
              span.begin_ms, span.end_ms);
    for (const PathPart& part : time.critical_path) add_bar(3, path_style(part), part.name, part.begin_ms, part.end_ms);
    add_legend();
    svg_ += "</svg>\n";
  }

  std::string take() { return std::move(svg_); }

 private:
  template <class... Values>
  void add(const char* format, Values... values) {
    char text[512];
    std::snprintf(text, sizeof(text), format, values...);
    svg_ += text;
  }

  static double height() { return kTop + 4 * kRow + 64; }
  double x(double ms) const { return kLeft + ms * scale_; }

  // Colours that stand out from white and from black; words follow the reader's theme.
  void begin(const std::string& title) {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
        "font-size=\"12\" role=\"img\">\n",
        kWidth, height());
    svg_ += "<title>" + xml_text(title) + "</title>\n";
    svg_ +=
        "<style>text{fill:#24292f}.line{stroke:#8c959f;stroke-width:.5;opacity:.5}.forward{fill:#2f81c7}"
        ".backward{fill:#1a5a96}.gather{fill:#3a9d5d}.reduce{fill:#c27a1a}.wait{fill:#cf4a4a}.other{fill:#8957c5}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.backward{fill:#5a9fd6}.forward{fill:#8cc3ee}}</style>\n";
    svg_ += "<text x=\"8\" y=\"20\" font-size=\"14\" font-weight=\"bold\">" + xml_text(title) + "</text>\n";
    add("<text x=\"8\" y=\"38\">step %.2f ms: compute %.2f, optimizer %.2f, exposed gather %.2f, exposed reduce "
        "%.2f</text>\n",
        time_.step_ms, time_.compute_ms, time_.optimizer_ms, time_.exposed_gather_ms, time_.exposed_reduce_ms);
  }

  void add_axis() {
    const double step = round_step(std::max(time_.step_ms, 1e-9), 10);
    const double bottom = kTop + 4 * kRow;
    for (int i = 0; i * step <= time_.step_ms * (1 + 1e-9); ++i) {
      add("<line class=\"line\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%.0f\" y2=\"%.0f\"/>", x(i * step), x(i * step), kTop - 4,
          bottom);
      add("<text x=\"%.2f\" y=\"%.0f\" text-anchor=\"middle\">%g</text>\n", x(i * step), bottom + 14, i * step);
    }
    add("<text x=\"8\" y=\"%.0f\">ms</text>\n", bottom + 14);
  }

  void add_row(int row, const char* label) {
    add("<text x=\"8\" y=\"%.0f\">%s</text>\n", kTop + row * kRow + 15, label);
  }

  // Thousands of bars that are narrower than a pixel are one to the eye.
  void add_bar(int row, const char* style, const std::string& label, double begin_ms, double end_ms) {
    const double left = x(begin_ms), width = (end_ms - begin_ms) * scale_;
    double& drawn_to = drawn_to_[row];
    if (width < kNarrowest && left < drawn_to) return;
    drawn_to = std::max(drawn_to, left + std::max(width, kNarrowest));
    add("<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"><title>", style, left,
        kTop + row * kRow, std::max(width, kNarrowest), kBar);
    svg_ += xml_text(label);
    add(": %.3f to %.3f ms</title></rect>\n", begin_ms, end_ms);
  }

  static const char* path_style(const PathPart& part) {
    Instruction instruction;
    instruction.action = part.action;
    if (part.name.rfind("backward", 0) == 0) instruction.pass = schedule::Pass::kBackward;
    return style_of(instruction);
  }

  void add_legend() {
    const char* const entries[][2] = {{"forward", "forward"}, {"backward", "backward"}, {"gather", "gather"},
                                      {"reduce", "reduce"},   {"wait", "exposed"},      {"other", "optimizer"}};
    double left = kLeft;
    const double top = kTop + 4 * kRow + 28;
    for (const auto& [style, label] : entries) {
      add("<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\"/>", style, left, top);
      add("<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", left + 19, top + 12, label);
      left += 110;
    }
  }

  const StepTime& time_;
  const StepWork& work_;
  double scale_;
  double drawn_to_[4] = {0, 0, 0, 0};
  std::string svg_;
};

}  // namespace

std::string to_svg(const StepTime& time, const StepWork& work, const std::string& title) {
  return Picture(time, work, title).take();
}

}  // namespace fsdp::plan::time
