// All verbs but `launch`, in a library of their own (app/main.cpp): finds the verb, and turns every error into one line
// and an exit code.
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "app/launch/failure_text.h"
#include "app/verbs.h"
#include "fsdp/base/advice.h"
#include "fsdp/base/error.h"
#include "kernels/base/cpu_isa.h"
#include "train/base/failure.h"
#include "train/base/leave.h"
#include "train/base/terminal_text.h"

namespace {

void print_usage(std::FILE* stream) {
  std::fputs("Usage: fsdp VERB [OPTIONS]\n\nVerbs:\n", stream);
  for (const auto& verb : fsdp::app::verbs()) {
    std::fprintf(stream, "  %-10s %s\n", verb.name, verb.summary);
  }
  std::fputs("\n`fsdp VERB --help` explains a verb.\n", stream);
}

using VerbFunction = int (*)(const fsdp::app::Arguments&);

// All but launch, which main() runs itself.
VerbFunction function_of(const std::string& verb) {
  namespace app = fsdp::app;
  static const std::map<std::string, VerbFunction> functions = {
      {"prepare", app::run_prepare},
      {"plan", app::run_plan},
      {"train", app::run_train},
      {"report", app::run_report},
      {"trace", app::run_trace},
      {"generate", app::run_generate},
      {"eval", app::run_eval},
      {"parity", app::run_parity},
      {"verify", app::run_verify},
      {"inspect", app::run_inspect},
      {"import", app::run_import},
      {"export", app::run_export},
      {"config", app::run_config},
      {"tokenizer", app::run_tokenizer},
      {"bench", app::run_bench},
      {"doctor", app::run_doctor},
      {"completion", app::run_completion},
  };
  return functions.at(verb);
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_usage(stderr);
    return static_cast<int>(fsdp::ErrorCode::kUsage);
  }
  if (const auto mistake = fsdp::kernels::cpu_isa_mistake()) throw fsdp::Error(fsdp::ErrorCode::kUsage, *mistake);
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  if (name == "--version") {
    std::printf("fsdp " FSDP_VERSION " (%s; LibTorch " TORCH_VERSION ": %s)\n",
                fsdp::kernels::describe_cpu_isa().c_str(), at::get_cpu_capability().c_str());
    return 0;
  }
  if (fsdp::app::find_verb(name) == nullptr) {
    throw fsdp::Error(fsdp::ErrorCode::kUsage,
                      "unknown verb " + name + fsdp::app::guess_verb(name) + " `fsdp --help` lists the verbs");
  }
  return function_of(name)({arguments.begin() + 1, arguments.end()});
}

// `fsdp launch` stops all ranks once one has failed, whichever that is, and prints once what several tell in the same
// words. Below it nobody leaves the telling to another rank, which might be stopped before it has told.
bool is_below_launch() {
  const char* value = std::getenv("FSDP_LAUNCH");
  return value != nullptr && *value != '\0';
}

void print_advice(const fsdp::Advice& advice) {
  std::fprintf(stderr, "fsdp: advice: %s\n", fsdp::train::for_terminal(advice.text).c_str());
}

}  // namespace

// What main() looks for. Ends the process.
extern "C" void fsdp_run_verb(int argc, char** argv) {
  fsdp::train::advise_where_memory_ends();
  fsdp::set_advice_handler(print_advice);
  try {
    fsdp::train::leave(run({argv + 1, argv + argc}));
  } catch (...) {
    const fsdp::train::Failure failure = fsdp::train::describe_failure(std::current_exception());
    if (!failure.told_elsewhere || is_below_launch()) {
      fsdp::app::print_failure(failure.message);
    }
    fsdp::train::leave(failure.exit_code);
  }
}
