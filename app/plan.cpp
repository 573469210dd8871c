// `fsdp plan`: what a run will take, before anything is rented.
#include <cstdio>

#include "app/command_line.h"
#include "app/plan_options.h"
#include "fsdp/base/units.h"
#include "io/base/atomic_file.h"
#include "plan/memory_picture.h"

namespace fsdp::app {
namespace {

constexpr const char* kDescription =
    "Says what training a model takes: memory of a rank by part, what travels in a step, what failures cost.\n"
    "Nothing is built and no data is read. The model: a preset, a config.json, or a training configuration, which\n"
    "then gives the defaults of what follows (--section.key=value as for `fsdp train`).";

// What is told, as text and as JSON.
struct Answer {
  std::string text;
  nlohmann::json json;
  std::vector<plan::MemoryBar> bars;
};

Answer answer_search(const PlanQuestion& question) {
  const plan::SearchResult result = plan::search(question.model, question.space);
  Answer answer{plan::to_text(result, question.space), plan::to_json(result), {}};
  for (const plan::Candidate& candidate : result.best) {
    answer.bars.push_back({plan::describe(candidate.setup),
                           plan::make_report(question.model, candidate.setup, question.space.options).memory});
  }
  return answer;
}

Answer answer_plan(const PlanQuestion& question, bool why) {
  const plan::Report report = plan::make_report(question.model, question.space.base, question.space.options);
  const plan::ReliabilityPlan reliability = plan::plan_reliability(report, question.reliability);
  Answer answer{plan::to_text(report) + "\n" + plan::to_text(reliability), plan::to_json(report), {}};
  answer.json["reliability"] = plan::to_json(reliability);
  answer.bars.push_back({report.model + ", " + plan::describe(report.setup), report.memory});
  if (question.space.memory > 0) {
    const int64_t room = question.space.memory - report.memory.total();
    answer.json["fits"] = room >= 0;
    answer.text += room >= 0 ? "fits: " + format_bytes(room) + " to spare\n"
                             : "does not fit: " + format_bytes(-room) + " too much\n";
  }
  if (why) {
    const plan::Limits limits = plan::find_limits(question.model, report, question.space);
    answer.text += "\n" + plan::to_text(limits, report, question.space);
    answer.json["why"] = plan::to_json(limits);
  }
  return answer;
}

}  // namespace

int run_plan(const Arguments& arguments) {
  PlanOptions options;
  CLI::App parser(kDescription, "fsdp plan");
  add_plan_options(parser, options);
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  options.overrides = parser.remaining();
  const PlanQuestion question = resolve(options);
  const Answer answer = options.fit ? answer_search(question) : answer_plan(question, options.why);
  if (!options.picture.empty())
    io::write_file_atomically(options.picture, plan::memory_picture(answer.bars, question.space.memory));
  std::fputs(options.json ? (answer.json.dump(2) + "\n").c_str() : answer.text.c_str(), stdout);
  return 0;
}

}  // namespace fsdp::app
