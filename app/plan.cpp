// `fsdp plan`: what a run will take, before anything is rented.
#include <cstdio>

#include "app/command_line.h"
#include "app/plan_calibrate.h"
#include "app/plan_options.h"
#include "fsdp/base/units.h"
#include "io/base/atomic_file.h"
#include "plan/memory_picture.h"
#include "plan/search/limits.h"
#include "plan/search/search.h"

namespace fsdp::app {
namespace {

constexpr const char* kDescription =
    "Says what training a model takes: memory of a rank by part, what travels in a step, how long a step takes, what\n"
    "failures cost. Nothing is built and no data is read. The model: a preset, a config.json, or a training\n"
    "configuration, which then gives the defaults of what follows (--section.key=value as for `fsdp train`).\n"
    "`fsdp plan calibrate --help`: measures this machine for --hardware.";

// What is told, as text and as JSON, and what files hold that were asked for.
struct Answer {
  std::string text;
  nlohmann::json json;
  std::vector<plan::MemoryBar> bars;
  std::string timeline;
};

Answer answer_search(const PlanQuestion& question) {
  const plan::SearchResult result = plan::search(question.model, question.space);
  Answer answer{plan::to_text(result, question.space), plan::to_json(result), {}, {}};
  for (const plan::Candidate& candidate : result.best) {
    answer.bars.push_back({plan::describe(candidate.setup),
                           plan::make_report(question.model, candidate.setup, question.space.options).memory});
  }
  return answer;
}

void add_time(Answer& answer, const PlanQuestion& question, const plan::Report& report, double goodput) {
  const plan::SearchSpace& space = question.space;
  if (!space.hardware) {
    answer.text += "time of a step: not predicted. " + question.why_no_forecast + "\n";
    answer.json["time"] = {{"not_predicted", question.why_no_forecast}};
    return;
  }
  const plan::Forecast forecast = plan::forecast(question.model, report.setup, space.options.network, *space.hardware);
  answer.text += plan::to_text(forecast, question.hardware_origin);
  answer.json["time"] = plan::to_json(forecast, question.hardware_origin);
  if (question.tokens > 0) {
    const plan::RunLength length = plan::run_length(forecast, question.tokens);
    answer.text += "  " + plan::to_text(length, goodput);
    answer.json["time"]["run"] = plan::to_json(length, goodput);
  }
  if (question.timeline) {
    const std::string title =
        report.model + " on " + std::to_string(report.setup.world()) + " " + forecast.hardware.name;
    answer.timeline = plan::timeline_text(forecast, *question.timeline, title);
  }
}

void add_fit(Answer& answer, int64_t room) {
  answer.json["fits"] = room >= 0;
  answer.text += room >= 0 ? "fits: " + format_bytes(room) + " to spare\n"
                           : "does not fit: " + format_bytes(-room) + " too much\n";
}

Answer answer_plan(const PlanQuestion& question, bool why) {
  const plan::Report report = plan::make_report(question.model, question.space.base, question.space.options);
  const plan::ReliabilityPlan reliability = plan::plan_reliability(report, question.reliability);
  Answer answer{plan::to_text(report) + "\n", plan::to_json(report), {}, {}};
  add_time(answer, question, report, reliability.goodput);
  answer.text += "\n" + plan::to_text(reliability);
  answer.json["reliability"] = plan::to_json(reliability);
  answer.bars.push_back({report.model + ", " + plan::describe(report.setup), report.memory});
  if (question.space.memory > 0) add_fit(answer, question.space.memory - report.memory.total());
  if (why) {
    const plan::Limits limits = plan::find_limits(question.model, report, question.space);
    answer.text += "\n" + plan::to_text(limits, question.space);
    answer.json["why"] = plan::to_json(limits);
  }
  return answer;
}

}  // namespace

int run_plan(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "calibrate")
    return run_plan_calibrate({arguments.begin() + 1, arguments.end()});
  PlanOptions options;
  CLI::App parser(kDescription, "fsdp plan");
  add_plan_options(parser, options);
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  options.overrides = parser.remaining();
  const PlanQuestion question = resolve(options);
  const Answer answer = options.fit ? answer_search(question) : answer_plan(question, options.why);
  if (!options.picture.empty())
    io::write_file_atomically(options.picture, plan::memory_picture(answer.bars, question.space.memory));
  if (question.timeline) io::write_file_atomically(options.timeline, answer.timeline);
  std::fputs(options.json ? (answer.json.dump(2) + "\n").c_str() : answer.text.c_str(), stdout);
  return 0;
}

}  // namespace fsdp::app
