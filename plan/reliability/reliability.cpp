#include "plan/reliability/reliability.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "fsdp/base/units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

void check(const Reliability& options) {
  const auto expect = [](const char* what, double value, bool positive) {
    if (std::isfinite(value) && (positive ? value > 0 : value >= 0)) return;
    throw io::Error(io::ErrorKind::kUsage, std::string("[plan] ") + what + ": got " + std::to_string(value) +
                                               ", expected a number " + (positive ? "above 0." : "of at least 0."));
  };
  expect("mean time between failures of a rank", options.rank_mtbf_hours, true);
  expect("bytes that a rank writes per second", options.checkpoint_bytes_per_s, true);
  expect("bytes that the storage takes per second", options.storage_bytes_per_s, false);
  expect("seconds of a snapshot", options.snapshot_seconds, false);
  expect("seconds of a restart", options.restart_seconds, false);
}

// Daly's equation 37: the time between checkpoints that minimises the expected time of a run.
double daly_interval(double pause, double mtbf) {
  if (pause >= 2 * mtbf) return mtbf;
  const double x = pause / (2 * mtbf);
  return std::sqrt(2 * pause * mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - pause;
}

// Daly's equation 20, as work per time: a segment of work and pause is repeated until it is done without a failure.
double expected_goodput(double interval, double pause, double restart, double mtbf) {
  return interval / (mtbf * std::exp(restart / mtbf) * std::expm1((interval + pause) / mtbf));
}

std::string text_of_seconds(double seconds) {
  std::array<char, 48> text{};
  const char* format = seconds >= 7200 ? "%.1f h" : seconds >= 120 ? "%.1f min" : "%.2f s";
  std::snprintf(text.data(), text.size(), format,
                seconds >= 7200  ? seconds / 3600
                : seconds >= 120 ? seconds / 60
                                 : seconds);
  return text.data();
}

std::string decimal_text(double value, const char* format) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

ReliabilityPlan plan_reliability(const Report& report, const Reliability& options) {
  check(options);
  const Setup& setup = report.setup;
  const auto world = static_cast<double>(setup.world());
  ReliabilityPlan plan;
  plan.checkpoint_bytes = report.checkpoint_bytes;
  // Ranks that hold the same elements write a part of them each.
  plan.largest_file = (plan.checkpoint_bytes + setup.world() - 1) / setup.world();
  plan.write_seconds = static_cast<double>(plan.largest_file) / options.checkpoint_bytes_per_s;
  if (options.storage_bytes_per_s > 0)
    plan.write_seconds =
        std::max(plan.write_seconds, static_cast<double>(plan.checkpoint_bytes) / options.storage_bytes_per_s);
  plan.pause_seconds = options.snapshot_seconds > 0 ? options.snapshot_seconds : plan.write_seconds;
  plan.mtbf_seconds = options.rank_mtbf_hours * 3600 / world;
  plan.young_seconds = std::sqrt(2 * plan.pause_seconds * plan.mtbf_seconds);
  // One checkpoint is written before the next begins.
  plan.daly_seconds = std::max(daly_interval(plan.pause_seconds, plan.mtbf_seconds), plan.write_seconds);
  plan.goodput = expected_goodput(plan.daly_seconds, plan.pause_seconds, options.restart_seconds, plan.mtbf_seconds);
  const double behind = plan.write_seconds > plan.pause_seconds ? plan.write_seconds : 0;  // not on disk yet
  plan.lost_per_failure = (plan.daly_seconds + plan.pause_seconds) / 2 + behind + options.restart_seconds;
  plan.failures_per_day = 86400 / plan.mtbf_seconds;
  return plan;
}

std::string to_text(const ReliabilityPlan& plan) {
  return "checkpoints: " + format_bytes(plan.checkpoint_bytes) + " in all, " + format_bytes(plan.largest_file) +
         " per rank, written in " + text_of_seconds(plan.write_seconds) + "\n  a failure every " +
         text_of_seconds(plan.mtbf_seconds) + " (" + decimal_text(plan.failures_per_day, "%.2f") + " a day) costs " +
         text_of_seconds(plan.lost_per_failure) + "\n  best time between checkpoints " +
         text_of_seconds(plan.daly_seconds) + " (Daly; Young " + text_of_seconds(plan.young_seconds) +
         "): expected goodput " + decimal_text(100 * plan.goodput, "%.2f") + " %\n";
}

nlohmann::json to_json(const ReliabilityPlan& plan) {
  return {{"checkpoint_bytes", plan.checkpoint_bytes}, {"largest_file", plan.largest_file},
          {"write_seconds", plan.write_seconds},       {"pause_seconds", plan.pause_seconds},
          {"mtbf_seconds", plan.mtbf_seconds},         {"young_seconds", plan.young_seconds},
          {"daly_seconds", plan.daly_seconds},         {"goodput", plan.goodput},
          {"lost_per_failure", plan.lost_per_failure}, {"failures_per_day", plan.failures_per_day}};
}

}  // namespace fsdp::plan
