#include "report/run_charts.h"

#include <algorithm>
#include <cmath>

namespace fsdp::report {
namespace {

using Points = std::vector<Point>;

Points points_of(const RunRecord& run, double StepFigures::*member) {
  Points points;
  for (const StepFigures& row : run.steps) points.push_back({static_cast<double>(row.step), row.*member});
  return points;
}

Points ledger_points(const RunRecord& run, double LedgerFigures::*member) {
  Points points;
  for (const LedgerFigures& row : run.ledger) points.push_back({static_cast<double>(row.step), row.*member});
  return points;
}

// The ledger has every step, metrics.jsonl those that were logged.
Points all_losses(const RunRecord& run) {
  return run.ledger.empty() ? points_of(run, &StepFigures::loss) : ledger_points(run, &LedgerFigures::loss);
}

Points all_norms(const RunRecord& run) {
  return run.ledger.empty() ? points_of(run, &StepFigures::grad_norm) : ledger_points(run, &LedgerFigures::grad_norm);
}

Points part_of_step(const RunRecord& run, double StepFigures::*member) {
  Points points;
  for (const StepFigures& row : run.steps)
    points.push_back({static_cast<double>(row.step), row.step_ms > 0 ? row.*member / row.step_ms : NAN});
  return points;
}

constexpr size_t kFewPoints = 40;

// A mean that forgets: of about a fortieth of the points. What is no number is left out.
Points smoothed(const Points& points) {
  const double weight = std::min(1.0, 2.0 / (1.0 + static_cast<double>(points.size()) / 40.0));
  Points smooth;
  double mean = 0, seen = 0;
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) continue;
    seen = (1 - weight) * seen + weight;
    mean = (1 - weight) * mean + weight * point.y;
    smooth.push_back({point.x, mean / seen});
  }
  return smooth;
}

enum class Smooth { kYes, kNo };

// The points as they are, and where these are many a smooth line before them.
void add_series(Chart& chart, int run, const char* name, Points points, Smooth smooth = Smooth::kYes) {
  if (points.size() <= kFewPoints || smooth == Smooth::kNo) {
    chart.series.push_back({run, name, letter(run), Stroke::kLine, std::move(points)});
    return;
  }
  chart.series.push_back({run, std::string(name) + ", smoothed", letter(run), Stroke::kLine, smoothed(points)});
  chart.series.push_back({run, name, "", Stroke::kFaint, std::move(points)});
}

// Of a step that was skipped the ledger knows too, where there are no events.
void add_marks(Chart& chart, const RunRecord& run, int place) {
  for (const Event& event : run.events) {
    if (!has_sign(event.kind)) continue;
    std::string text = event.text.empty() ? event.kind + " after step " + std::to_string(event.step) : event.text;
    chart.marks.push_back({place, static_cast<double>(event.step), event.kind, std::move(text)});
  }
  if (!run.events.empty()) return;
  for (const LedgerFigures& row : run.ledger) {
    if (row.skipped)
      chart.marks.push_back(
          {place, static_cast<double>(row.step), "skipped", "step " + std::to_string(row.step) + " skipped"});
  }
}

struct Plain {
  const char* title;
  const char* what;
  const char* name;
  double StepFigures::*member;
  Unit unit;
  Smooth smooth = Smooth::kYes;
};

Chart plain_chart(const std::vector<RunRecord>& runs, const Plain& plain) {
  Chart chart{plain.title, plain.what, plain.unit};
  for (size_t i = 0; i < runs.size(); ++i)
    add_series(chart, static_cast<int>(i), plain.name, points_of(runs[i], plain.member), plain.smooth);
  return chart;
}

// Norms may fall by powers of ten, which only a logarithmic axis shows.
Chart norm_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Gradient norm", "before clipping", Unit::kPlain};
  double low = INFINITY, high = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Points norms = all_norms(runs[i]);
    for (const Point& point : norms) {
      if (!(point.y > 0) || !std::isfinite(point.y)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
    add_series(chart, static_cast<int>(i), "norm", norms);
  }
  if (high > 20 * low) {
    chart.scale = AxisScale::kLog;
    chart.what = "before clipping, logarithmic";
  }
  return chart;
}

Chart wait_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Waited for communication", "share of a step of rank 0 that no computation hid", Unit::kPercent};
  for (size_t i = 0; i < runs.size(); ++i)
    add_series(chart, static_cast<int>(i), "waited", part_of_step(runs[i], &StepFigures::exposed_ms));
  return chart;
}

}  // namespace

Chart loss_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Loss", "", Unit::kPlain, AxisScale::kEven, AxisStart::kLowest};
  for (size_t i = 0; i < runs.size(); ++i) {
    const int place = static_cast<int>(i);
    add_series(chart, place, "loss", all_losses(runs[i]));
    Points heldout;
    for (const HeldoutFigures& row : runs[i].heldout) heldout.push_back({static_cast<double>(row.step), row.loss});
    if (!heldout.empty())
      chart.series.push_back({place, "held out", letter(place) + " held out", Stroke::kPoints, std::move(heldout)});
    add_marks(chart, runs[i], place);
  }
  return chart;
}

std::vector<Chart> other_charts(const std::vector<RunRecord>& runs) {
  return {
      norm_chart(runs),
      plain_chart(runs, {"Learning rate", "", "lr", &StepFigures::lr, Unit::kPlain, Smooth::kNo}),
      plain_chart(runs, {"Throughput", "tokens per second of all ranks together", "tok/s", &StepFigures::tokens_per_s,
                         Unit::kPlain}),
      plain_chart(runs, {"Model FLOPs utilisation", "share of the peak of all ranks", "mfu", &StepFigures::mfu,
                         Unit::kPercent}),
      plain_chart(runs,
                  {"Time of a step", "mean since the line before", "step", &StepFigures::step_ms, Unit::kMilliseconds}),
      wait_chart(runs),
      plain_chart(runs,
                  {"Memory of the GPU", "reserved by rank 0", "reserved", &StepFigures::device_reserved, Unit::kBytes}),
  };
}

}  // namespace fsdp::report
