#include "train/loop/plan_of_run.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "fsdp/base/units.h"
#include "fsdp/comm/connection.h"
#include "plan/forecast/planned_work.h"
#include "plan/time/hardware_file.h"
#include "train/base/format.h"
#include "train/calibrate/calibration.h"
#include "train/model/planned_run.h"

namespace fsdp::train {
namespace {

// "weights 9.5 MiB (+0.00 %)": the second is how far the first is from the plan.
std::string compared(const std::string& part, int64_t real, int64_t planned) {
  const auto difference = static_cast<double>(real - planned);
  const double percent = planned > 0 ? 100 * difference / static_cast<double>(planned) : real > 0 ? 100 : 0;
  return part + " " + format_bytes(real) + format_text(" (%+.2f %%)", percent);
}

struct PartBytes {
  std::string name;
  int64_t real, planned;
};

std::vector<PartBytes> parts_of(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes) {
  using plan::Part;
  const RestingBytes rest = root.resting_bytes();
  const MemoryCategories memory = root.memory();
  const auto planned = [&](Part part) { return plan.memory.size_of(part); };
  return {{"weights", rest.main_weight + rest.model_weight, planned(Part::kMainWeight) + planned(Part::kModelWeight)},
          {"gradients", rest.main_grad, planned(Part::kMainGrad)},
          {"optimizer", optimizer_bytes, planned(Part::kOptimizer)},
          {"buffers", memory.gathered + memory.reduce + memory.idle, plan.step.held_bytes}};
}

}  // namespace

namespace {

plan::Setup setup_of_run(const Config& config, const World& world) {
  const std::string transport = transport_name(world);
  const bool is_modelled = transport == "fabric";  // one link for all, and no scratch, like memory that ranks share
  plan::Setup setup = planned_setup(config, {world.size, is_modelled ? world.size : world.local_size});
  if (setup.transport != plan::Transport::kNccl) {
    setup.transport = transport == "shm" || is_modelled ? plan::Transport::kSharedMemory
                      : transport == "gloo"             ? plan::Transport::kGloo
                                                        : plan::Transport::kTwoLevel;
  }
  const bool has_own_copy = is_modelled || world.connection->host_weights() == HostWeightCopies::kPerRank;
  if (has_own_copy) setup.copies = plan::GatheredCopies::kPerRank;
  return setup;
}

}  // namespace

plan::Report plan_run(const Config& config, const ModelChoice& choice, const World& world) {
  const plan::Setup setup = setup_of_run(config, world);
  const int64_t place = world.rank / setup.stage_ranks();
  return plan::make_stage_report(planned_model(config, choice), setup, {}, place);
}

std::string planned_optimizer(const plan::Report& plan) {
  return ", optimizer " + format_bytes(plan.memory.size_of(plan::Part::kOptimizer));
}

namespace {

plan::Forecast forecast_on(const plan::time::Hardware& hardware, const Config& config, const ModelChoice& choice,
                           const plan::Report& plan) {
  const plan::PlannedModel model = planned_model(config, choice);
  const plan::Network network{.rails = plan.setup.node_size};
  if (const auto reason = plan::why_no_forecast(model, plan.setup, network, hardware))
    throw Error(ErrorCode::kUsage,
                "[plan] output.hardware '" + config.output.hardware + "': no time of a step: " + *reason);
  return plan::forecast(model, plan.setup, network, hardware);
}

}  // namespace

std::optional<RunForecast> forecast_run(const Config& config, const ModelChoice& choice, const plan::Report& plan) {
  if (config.output.hardware.empty()) return std::nullopt;
  const plan::time::Hardware hardware = plan::time::choose_hardware(config.output.hardware);
  plan::Forecast planned = forecast_on(hardware, config, choice, plan);
  const plan::PlannedModel model = planned_model(config, choice);
  return RunForecast(std::move(planned), [hardware, model, setup = plan.setup](double busiest_experts) {
    plan::Setup busy = setup;
    busy.work.busiest_experts = busiest_experts;
    return plan::forecast(model, busy, {.rails = setup.node_size}, hardware);
  });
}

std::string RunForecast::compare(double step_seconds) const {
  std::string text = compare_with_forecast(planned_, step_seconds);
  const size_t first = busiest_.size() > 3 ? 3 : 0;  // as Pace::median_step_seconds()
  if (busiest_.empty()) return text;
  const double sum = std::accumulate(busiest_.begin() + static_cast<int64_t>(first), busiest_.end(), 0.0);
  const double busiest = sum / static_cast<double>(busiest_.size() - first);
  if (busiest < 1.02) return text;
  const double planned_ms = again_(busiest).step.step_ms;
  return text +
         format_text(
             "; experts of the busiest rank got %.2f times an equal share, with which %.1f ms are planned (%+.1f %%)",
             busiest, planned_ms, 100 * (1e3 * step_seconds / planned_ms - 1));
}

std::optional<plan::Forecast> forecast_simulated(const Config& config, const ModelChoice& choice,
                                                 const plan::Report& plan, const comm::FabricModel& network) {
  constexpr double kSecondsToMeasure = 2;
  const bool is_named = !config.output.hardware.empty();
  if (!is_named && plan.setup.transport == plan::Transport::kNccl) return std::nullopt;
  const bool is_narrow = plan::dtype_of_products(plan.setup) == plan::time::Dtype::kBf16;
  plan::time::Hardware hardware = is_named ? plan::time::choose_hardware(config.output.hardware)
                                           : calibrate_cpu(is_narrow ? at::kBFloat16 : at::kFloat, kSecondsToMeasure);
  // Transfers come one after the other, each after the latency: comm::FabricModel.
  hardware.sharing = plan::time::Sharing::kQueue;
  hardware.hops = plan::time::Hops::kNone;
  hardware.start_us = std::chrono::duration<double, std::micro>(network.latency).count();
  hardware.node = hardware.network = {network.bytes_per_second, 0};
  hardware.network_efficiency = 1;
  hardware.slowdown_by_transfers = 0;
  return forecast_on(hardware, config, choice, plan);
}

std::string dry_run_text(const Config& config, const ModelChoice& choice, const World& world) {
  const plan::Report plan = plan::make_report(planned_model(config, choice), setup_of_run(config, world));
  const auto forecast = forecast_run(config, choice, plan);
  return plan::to_text(plan) +
         (forecast ? "\n" + plan::to_text(forecast->planned(), plan::HardwareOrigin::kGiven) : std::string());
}

std::string describe_forecast(const plan::Forecast& forecast) {
  return format_text("plan: a step takes %.1f ms on %s: %.1f computing, %.1f waiting for transfers, %.1f optimizer; ",
                     forecast.step.step_ms, forecast.hardware.name.c_str(), forecast.step.compute_ms,
                     forecast.exposed_ms(), forecast.step.optimizer_ms) +
         format_text("%.0f tok/s of all ranks", forecast.tokens_per_second());
}

std::string compare_with_forecast(const plan::Forecast& forecast, double step_seconds) {
  const double ms = 1e3 * step_seconds;
  return format_text("plan: a step took %.1f ms (%+.1f %% of the %.1f planned on %s)", ms,
                     100 * (ms / forecast.step.step_ms - 1), forecast.step.step_ms, forecast.hardware.name.c_str());
}

std::string describe_plan(const plan::Report& plan) {
  const plan::MemoryPlan& memory = plan.memory;
  return "plan: beside what rests a rank holds buffers of " + format_bytes(plan.step.held_bytes) +
         " and activations of " + format_bytes(memory[plan::Part::kActivations] + memory[plan::Part::kLoss]) + ", " +
         format_bytes(memory.total()) + " in all at most, in the " + memory.where + "; a step receives " +
         format_bytes(plan.traffic.received_bytes);
}

std::string compare_with_plan(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes) {
  std::string text;
  for (const PartBytes& part : parts_of(plan, root, optimizer_bytes))
    text += (text.empty() ? "" : ", ") + compared(part.name, part.real, part.planned);
  return "plan: this rank holds " + text + " (how far from the plan)";
}

std::string compare_all_ranks(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes, const World& world) {
  int64_t difference = 0;
  for (const PartBytes& part : parts_of(plan, root, optimizer_bytes)) difference += std::abs(part.real - part.planned);
  const at::Tensor sum = sum_over_ranks(world, at::full({1}, difference, at::kLong));
  return "plan: the parts of all ranks of all stages are " + with_thousands(sum.item<int64_t>()) +
         " bytes from their plans";
}

std::string compare_traffic(const plan::Report& plan, const Counters& counters) {
  const plan::CallLedger& planned = plan.step.calls;
  const auto beside = [](int64_t real, int64_t expected) {
    return with_thousands(real) + " (planned " + with_thousands(expected) + ")";
  };
  return "traffic of the last step: " + beside(counters.gathers, planned.gathers) + " gathers, " +
         beside(counters.reduces, planned.reduces) + " reductions; received " +
         beside(counters.gather_bytes, planned.gather_bytes) + " bytes of weights, " +
         beside(counters.reduce_bytes, planned.reduce_bytes) + " of gradients";
}

}  // namespace fsdp::train
