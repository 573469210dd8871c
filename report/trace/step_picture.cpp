#include "report/trace/step_picture.h"

#include <algorithm>

#include "plan/picture/axis.h"
#include "plan/picture/xml_text.h"
#include "report/printed.h"
#include "report/svg.h"

namespace fsdp::report {
namespace {

using plan::xml_text;

constexpr double kPictureWidth = 1200, kRowsLeft = 104, kRowsRight = 16, kRowsTop = 46;
constexpr double kRowHeight = 30, kBarHeight = 22, kHeadHeight = 22, kBlockGap = 10;
constexpr double kThinnest = 0.4;  // pixels

constexpr const char* kPictureStyle =
    "<style>text{font:12px "
    "system-ui,sans-serif;fill:#1b1f24}.head{font-weight:600}.title{font-size:15px;font-weight:600}"
    ".soft{fill:#59636e}.ground{fill:#fff}.grid{stroke:#d5dae0;fill:none}.name{font-size:11px;fill:#fff;pointer-events:"
    "none}"
    ".dark{fill:#1b1f24}.forward{fill:#2f6fb0}.backward{fill:#1d4a80}.optimizer{fill:#7a4fa3}.sums{fill:#8f5b00}"
    ".data{fill:#00727f}.rest{fill:#c9ced5}.gather{fill:#2a7d4d}.reduce{fill:#a85f16}"
    ".hatch-ground{fill:#f7c9c5}.hatch-line{stroke:#b3261e;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e7ebef}.soft{fill:#9aa5b1}.ground{fill:#14181d}.grid{stroke:#343b44}"
    ".forward{fill:#3b78b9}.backward{fill:#27517f}.rest{fill:#4a525c}.dark{fill:#e7ebef}.hatch-ground{fill:#5a2a27}"
    ".hatch-line{stroke:#ff8a80}}</style>\n"
    "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect class=\"hatch-ground\" width=\"6\" height=\"6\"/><path class=\"hatch-line\" "
    "d=\"M0 0V6\"/></pattern></defs>\n";

const char* style_of(Spent spent) {
  switch (spent) {
    case Spent::kForward:
      return "forward";
    case Spent::kBackward:
      return "backward";
    case Spent::kOptimizer:
      return "optimizer";
    case Spent::kSums:
      return "sums";
    case Spent::kData:
      return "data";
    case Spent::kGatherWait:
    case Spent::kReduceWait:
      return "wait";
    case Spent::kRest:
      return "rest";
  }
  return "rest";
}

// "layers.3": the end of a dotted name, which is what differs.
std::string short_unit(const std::string& unit) {
  const size_t last = unit.rfind('.');
  const size_t before = last == std::string::npos || last == 0 ? std::string::npos : unit.rfind('.', last - 1);
  return before == std::string::npos ? unit : unit.substr(before + 1);
}

class StepDrawing {
 public:
  StepDrawing(const std::vector<TracedStep>& ranks, const std::string& title) : ranks_(ranks), title_(title) {
    begin_ = ranks.front().split.begin_ms;
    end_ = ranks.front().split.end_ms;
    for (const TracedStep& rank : ranks) {
      begin_ = std::min(begin_, rank.split.begin_ms);
      end_ = std::max(end_, rank.split.end_ms);
    }
    scale_ = (kPictureWidth - kRowsLeft - kRowsRight) / std::max(end_ - begin_, 1e-9);
  }

  std::string draw() {
    double y = kRowsTop;
    for (const TracedStep& rank : ranks_) y = draw_rank(rank, y);
    const double axis = y;
    y = draw_legend(y + 34);
    for (const TracedStep& rank : ranks_) y = draw_causes(rank, y + 8);
    const std::string height = pixel(y + 8);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + pixel(kPictureWidth) + " " + height +
           "\" role=\"img\">\n" + kPictureStyle + "<title>" + xml_text(title_) +
           "</title>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n" + words(16, 24, "title", title_) +
           draw_axis(axis) + body_ + "</svg>\n";
  }

 private:
  double x(double ms) const { return kRowsLeft + (ms - begin_) * scale_; }

  static std::string words(double left, double base, const char* style, const std::string& text) {
    return std::string("<text class=\"") + style + "\" x=\"" + pixel(left) + "\" y=\"" + pixel(base) + "\">" +
           xml_text(text) + "</text>\n";
  }

  std::string draw_axis(double bottom) const {
    const double step = plan::round_step(std::max(end_ - begin_, 1e-9), 10);
    std::string svg;
    for (int i = 0; i * step <= (end_ - begin_) * (1 + 1e-9); ++i) {
      const std::string place = pixel(x(begin_ + i * step));
      svg += "<path class=\"grid\" d=\"M" + place + " " + pixel(kRowsTop) + "V" + pixel(bottom) +
             "\"/><text class=\"soft\" " + "text-anchor=\"middle\" x=\"" + place + "\" y=\"" + pixel(bottom + 14) +
             "\">" + printed("%g", i * step) + "</text>";
    }
    return svg + words(16, bottom + 14, "soft", "ms");
  }

  // Thousands of bars that are narrower than a pixel are one to the eye.
  void draw_bar(double top, double begin_ms, double end_ms, const char* style, const std::string& what,
                const std::string& unit, double& drawn_to) {
    const double from = std::max(x(begin_ms), kRowsLeft), to = std::min(x(end_ms), kPictureWidth - kRowsRight);
    if (to < from || (to - from < kThinnest && from < drawn_to)) return;
    const double width = std::max(to - from, kThinnest);
    drawn_to = from + width;
    const bool waits = std::string_view(style) == "wait";
    body_ += "<rect " + (waits ? std::string("fill=\"url(#wait)\"") : "class=\"" + std::string(style) + "\"") +
             " x=\"" + pixel(from) + "\" y=\"" + pixel(top) + "\" width=\"" + pixel(width) + "\" height=\"" +
             pixel(kBarHeight) + "\"><title>" + xml_text(what + (unit.empty() ? "" : " " + unit)) +
             printed(": %.3f ms, from %.3f to %.3f", end_ms - begin_ms, begin_ms - begin_, end_ms - begin_) +
             "</title></rect>\n";
    const std::string label = unit.empty() ? what : short_unit(unit);
    if (6.3 * static_cast<double>(label.size()) + 4 < width && std::string_view(style) != "rest")
      body_ += words(from + 3, top + 15, waits ? "name dark" : "name", label);
  }

  // A row of its own, where there are some: ranks that share memory have none. Returns where the next one begins.
  double draw_transfers(const TracedStep& rank, double top, const char* kind, const char* label) {
    double drawn_to = 0;
    bool is_empty = true;
    for (const TraceSpan& span : rank.trace->spans) {
      const bool is_here = span.end_ms > rank.split.begin_ms && span.begin_ms < rank.split.end_ms;
      if (span.kind != kind || span.thread == "program" || span.thread.empty() || !is_here) continue;
      draw_bar(top, span.begin_ms, span.end_ms, kind, kind, span.unit, drawn_to);
      is_empty = false;
    }
    if (is_empty) return top;
    body_ += words(16, top + 15, "soft", label);
    return top + kRowHeight;
  }

  double draw_rank(const TracedStep& rank, double y) {
    double waits = 0, computed = 0;
    for (const SpentTime& piece : rank.split.pieces)
      (is_wait(piece.spent) ? waits : computed) += piece.end_ms - piece.begin_ms;
    body_ += words(16, y + 14, "head",
                   printed("rank %d: %.2f ms, of which %.2f waited for others (%.1f%%)", rank.trace->rank,
                           rank.split.length(), waits, 100 * waits / std::max(rank.split.length(), 1e-9)));
    y += kHeadHeight;
    double drawn_to = 0;
    body_ += words(16, y + 15, "soft", "program");
    for (const SpentTime& piece : rank.split.pieces)
      draw_bar(y, piece.begin_ms, piece.end_ms, style_of(piece.spent), name(piece.spent), piece.unit, drawn_to);
    y = draw_transfers(rank, y + kRowHeight, "gather", "gathers");
    return draw_transfers(rank, y, "reduce", "reductions") + kBlockGap;
  }

  // Of all ranks drawn, the mean.
  double draw_legend(double y) {
    double left = 16;
    for (int i = 0; i < kNumSpent; ++i) {
      const auto spent = static_cast<Spent>(i);
      double ms = 0;
      for (const TracedStep& rank : ranks_) ms += rank.split[spent] / static_cast<double>(ranks_.size());
      const std::string label = std::string(name(spent)) + printed(" %.2f ms", ms);
      const double width = 34 + 6.8 * static_cast<double>(label.size());
      if (left + width > kPictureWidth) {
        left = 16;
        y += 20;
      }
      const std::string style = style_of(spent);
      body_ += "<rect " + (style == "wait" ? std::string("fill=\"url(#wait)\"") : "class=\"" + style + "\"") + " x=\"" +
               pixel(left) + "\" y=\"" + pixel(y - 11) + "\" width=\"14\" height=\"14\"/>" +
               words(left + 20, y, "plain", label);
      left += width;
    }
    return y + 12;
  }

  double draw_causes(const TracedStep& rank, double y) {
    if (rank.split.causes.empty()) return y;
    body_ += words(16, y += 16, "head", "rank " + std::to_string(rank.trace->rank) + " waited longest for");
    for (size_t i = 0; i < std::min<size_t>(5, rank.split.causes.size()); ++i) {
      const Cause& cause = rank.split.causes[i];
      body_ += words(16, y += 17, "plain",
                     printed("%zu.  %.2f ms  ", i + 1, cause.ms) + cause.what +
                         (cause.times > 1 ? ", " + std::to_string(cause.times) + " times" : "") +
                         (cause.detail.empty() ? "" : "; " + cause.detail));
    }
    return y;
  }

  const std::vector<TracedStep>& ranks_;
  const std::string& title_;
  double begin_ = 0, end_ = 0, scale_ = 1;
  std::string body_;
};

}  // namespace

std::string draw_step(const std::vector<TracedStep>& ranks, const std::string& title) {
  return StepDrawing(ranks, title).draw();
}

}  // namespace fsdp::report
