// `fsdp plan`: what a run will take, before anything is rented.
#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "app/plan_options.h"
#include "io/base/atomic_file.h"
#include "plan/report.h"

namespace fsdp::app {
namespace {

constexpr const char* kDescription =
    "Says what training a model takes: memory of a rank by part, and what travels in a step. Nothing is built, no "
    "data\n"
    "is read. The model: a preset, a config.json, or a training configuration, whose keys also give the defaults of\n"
    "what follows (--section.key=value as for `fsdp train`).";

}  // namespace

int run_plan(const Arguments& arguments) {
  PlanOptions options;
  CLI::App parser(kDescription, "fsdp plan");
  add_plan_options(parser, options);
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  options.overrides = parser.remaining();
  const PlanQuestion question = resolve(options);
  const plan::Report report = plan::make_report(question.model, question.setup, question.report);
  std::fputs(options.json ? (plan::to_json(report).dump(2) + "\n").c_str() : plan::to_text(report).c_str(), stdout);
  return 0;
}

}  // namespace fsdp::app
