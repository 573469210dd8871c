#include "train/loop/plan_of_run.h"

#include "fsdp/base/units.h"
#include "fsdp/comm/connection.h"
#include "train/base/format.h"
#include "train/model/planned_run.h"

namespace fsdp::train {
namespace {

// "weights 9.5 MiB (+0.00 %)": the second is how far the first is from the plan.
std::string compared(const std::string& part, int64_t real, int64_t planned) {
  const auto difference = static_cast<double>(real - planned);
  const double percent = planned > 0 ? 100 * difference / static_cast<double>(planned) : real > 0 ? 100 : 0;
  return part + " " + format_bytes(real) + format_text(" (%+.2f %%)", percent);
}

}  // namespace

plan::Report plan_run(const Config& config, const ModelChoice& choice, const World& world) {
  plan::Setup setup = planned_setup(config, {world.size, world.local_size});
  const std::string transport = transport_name(world);
  if (setup.transport != plan::Transport::kNccl) {
    setup.transport = transport == "shm"    ? plan::Transport::kSharedMemory
                      : transport == "gloo" ? plan::Transport::kGloo
                                            : plan::Transport::kTwoLevel;
  }
  if (world.connection->host_weights() == HostWeightCopies::kPerRank) setup.copies = plan::GatheredCopies::kPerRank;
  return plan::make_report(planned_model(config, choice), setup);
}

std::string describe_plan(const plan::Report& plan) {
  const plan::MemoryPlan& memory = plan.memory;
  return "plan: beside what rests a rank holds buffers of " + format_bytes(plan.step.held_bytes) +
         " and activations of " + format_bytes(memory[plan::Part::kActivations] + memory[plan::Part::kLoss]) + ", " +
         format_bytes(memory.total()) + " in all at most, in the " + memory.where + "; a step receives " +
         format_bytes(plan.traffic.received_bytes);
}

std::string compare_with_plan(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes) {
  using plan::Part;
  const RestingBytes rest = root.resting_bytes();
  const MemoryCategories memory = root.memory();
  const auto planned = [&](Part part) { return plan.memory[part]; };
  return "plan: this rank holds " +
         compared("weights", rest.main_weight + rest.model_weight,
                  planned(Part::kMainWeight) + planned(Part::kModelWeight)) +
         compared(", gradients", rest.main_grad, planned(Part::kMainGrad)) +
         compared(", optimizer", optimizer_bytes, planned(Part::kOptimizer)) +
         compared(", buffers", memory.gathered + memory.reduce + memory.idle, plan.step.held_bytes) +
         " (how far from the plan)";
}

}  // namespace fsdp::train
