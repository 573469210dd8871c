#include "app/simulate_options.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "io/base/error.h"
#include "plan/setup.h"
#include "plan/time/collective_time.h"
#include "plan/time/hardware_file.h"

namespace fsdp::app {
namespace {

constexpr const char* kPrefix = "--simulate-";
constexpr const char* kNames[] = {"world", "latency-us", "bandwidth-gbps", "hardware", "steps"};

[[noreturn]] void refuse_simulation(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[train] " + message);
}

// By name, without the prefix.
using Values = std::map<std::string, std::string>;

Values take_values(Arguments& arguments) {
  Values values;
  Arguments rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].rfind(kPrefix, 0) != 0) {
      rest.push_back(arguments[i]);
      continue;
    }
    const size_t equals = arguments[i].find('=');
    const std::string option = arguments[i].substr(0, equals), name = option.substr(std::string(kPrefix).size());
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      std::string all;
      for (const char* known : kNames) all += (all.empty() ? "" : ", ") + std::string(kPrefix) + known;
      refuse_simulation("unknown option " + io::in_quotes(option) + ", expected one of " + all + ".");
    }
    if (equals == std::string::npos && i + 1 == arguments.size())
      refuse_simulation(option + ": no value; write " + option + "=VALUE.");
    values[name] = equals == std::string::npos ? arguments[++i] : arguments[i].substr(equals + 1);
  }
  arguments = std::move(rest);
  return values;
}

double number_of(const std::string& name, const std::string& text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(value >= least) || value > 1e12)
    refuse_simulation(kPrefix + name + ": got " + io::in_quotes(text) + ", expected a number of at least " +
                      (least > 0 ? "0.001" : "0") + ".");
  return value;
}

int64_t whole_number_of(const std::string& name, const std::string& text) {
  const double value = number_of(name, text, 0);
  if (value != static_cast<double>(static_cast<int64_t>(value)))
    refuse_simulation(kPrefix + name + ": got " + io::in_quotes(text) + ", expected a whole number.");
  return static_cast<int64_t>(value);
}

// What a gather among all ranks takes on that hardware, in nodes of the size that plans suppose.
comm::FabricModel network_of(const plan::time::Hardware& hardware, int64_t ranks) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const int size = static_cast<int>(std::max<int64_t>(2, ranks));
  const auto group = plan::time::RankGroup::neighbours(size, static_cast<int>(plan::Setup{}.node_size));
  const plan::time::Transfer transfer = scatter_or_gather(kBytes, group, hardware);
  comm::FabricModel model;
  model.latency = std::chrono::nanoseconds(static_cast<int64_t>(1e6 * transfer.latency_ms));
  model.bytes_per_second = static_cast<double>(kBytes) * (size - 1) / size / (1e-3 * transfer.link_ms);
  return model;
}

void check_alone() {
  const auto environment = comm::read_launch_environment([](const char* name) { return std::getenv(name); });
  if (environment.size > 1)
    refuse_simulation("--simulate-world: got a job of " + std::to_string(environment.size) + " ranks (" +
                      environment.launcher +
                      "), expected a process alone: it is rank 0, and no others exist. Start it without a launcher.");
}

}  // namespace

std::string simulate_help() {
  return "\n--simulate-world N runs a few steps of rank 0 of N ranks on this machine alone, over a modelled network,\n"
         "and prints times, waits, traffic and memory beside the plan. Losses mean nothing, nothing is written.\n"
         "  --simulate-bandwidth-gbps X  that a rank receives, in gigabits per second [400]\n"
         "  --simulate-latency-us X      of each transfer [20]\n"
         "  --simulate-hardware NAME     both, from the planner's table or a hardware file (docs/plan_time.md)\n"
         "  --simulate-steps N           the first two learn the order of the units [10]\n";
}

std::optional<train::SimulatedWorld> take_simulated_world(Arguments& arguments) {
  const Values values = take_values(arguments);
  if (values.empty()) return std::nullopt;
  if (values.count("world") == 0)
    refuse_simulation(kPrefix + values.begin()->first + " without --simulate-world N, which it is part of.");
  check_alone();
  train::SimulatedWorld simulated;
  simulated.ranks = whole_number_of("world", values.at("world"));
  simulated.origin = "default";
  if (const auto found = values.find("hardware"); found != values.end()) {
    simulated.network = network_of(plan::time::choose_hardware(found->second), simulated.ranks);
    simulated.origin = found->second;
  }
  if (const auto found = values.find("latency-us"); found != values.end()) {
    simulated.network.latency =
        std::chrono::nanoseconds(static_cast<int64_t>(1e3 * number_of("latency-us", found->second, 0)));
    simulated.origin = "as told";
  }
  if (const auto found = values.find("bandwidth-gbps"); found != values.end()) {
    simulated.network.bytes_per_second = 1e9 / 8 * number_of("bandwidth-gbps", found->second, 1e-3);
    simulated.origin = "as told";
  }
  if (const auto found = values.find("steps"); found != values.end())
    simulated.steps = whole_number_of("steps", found->second);
  return simulated;
}

}  // namespace fsdp::app
