#include "train/base/agreement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/comm/collectives.h"
#include "train/base/failure.h"

namespace fsdp::train {
namespace {

// "" for success, else the exit code and the message, as one string that travels.
std::string outcome_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    return std::to_string(failure.exit_code) + " " + failure.message;
  }
}

[[noreturn]] void rethrow(const World& world, const std::string& outcome, const std::string& prefix) {
  const size_t space = outcome.find(' ');
  const auto code = static_cast<ErrorCode>(std::stoi(outcome.substr(0, space)));
  throw AgreedError(code, prefix + outcome.substr(space + 1), /*told_elsewhere=*/world.rank != 0);
}

}  // namespace

void on_rank0(const World& world, const std::function<void()>& action) {
  const std::string outcome = broadcast_string(world, world.rank == 0 ? outcome_of(action) : "");
  if (!outcome.empty()) {
    rethrow(world, outcome, "");
  }
}

void on_all_ranks(const World& world, const std::function<void()>& action) {
  const std::vector<std::string> outcomes = gather_strings(world, outcome_of(action));
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const auto& text) { return !text.empty(); });
  if (failed == outcomes.end()) {
    return;
  }
  const bool alike = std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& text) { return text == *failed; });
  rethrow(world, *failed, alike ? "" : "rank " + std::to_string(failed - outcomes.begin()) + ": ");
}

int lowest_ranks_signal(const World& world, int own) {
  for (const std::string& text : gather_strings(world, std::to_string(own))) {
    if (text != "0") return std::stoi(text);
  }
  return 0;
}

}  // namespace fsdp::train
