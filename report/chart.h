#pragma once

#include <string>
#include <vector>

#include "report/number_text.h"

namespace fsdp::report {

struct Point {
  double x = 0, y = 0;
};

enum class Stroke {
  kLine,    // of its run's colour, dashes and mark
  kFaint,   // thin: what a smooth line stands for
  kPoints,  // marks, joined by a thin line
};

// Runs are told apart by colour, by dashes, by the shape of marks and by a letter at the line's end.
struct Series {
  int run = 0;        // 0..kMostRuns-1
  std::string name;   // for the pointer: "loss"
  std::string label;  // at the end of the line; "": none
  Stroke stroke = Stroke::kLine;
  std::vector<Point> points;  // by rising x; points that are no numbers are gaps
};

// What happened to a run at a step: a sign in the lane of the run below the plot.
struct Mark {
  int run = 0;
  double x = 0;
  std::string kind;  // that of the event
  std::string text;
};

enum class AxisScale { kEven, kLog };
// Whether an even axis begins at zero, or near the lowest value.
enum class AxisStart { kZero, kLowest };

struct Chart {
  std::string title;
  std::string what;  // below the title: unit and meaning
  Unit unit = Unit::kPlain;
  AxisScale scale = AxisScale::kEven;
  AxisStart start = AxisStart::kZero;
  std::vector<Series> series = {};
  std::vector<Mark> marks = {};
};

inline constexpr int kMostRuns = 8;

// "A" for run 0.
std::string letter(int run);

enum class Shape { kWide, kCompact };

// SVG whose colours are those of the page. Empty if there is no point to draw.
std::string draw_chart(const Chart& chart, Shape shape);

// A short piece of the line of a run with its mark, for keys.
std::string draw_key(int run);

// The sign of an event, for keys; and whether there is one.
std::string draw_sign(const std::string& kind);
bool has_sign(const std::string& kind);

}  // namespace fsdp::report
