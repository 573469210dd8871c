#include "plan/memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/products/product_kernels.h"

namespace fsdp::plan {
namespace {

struct PartText {
  std::string_view name, meaning;
};

constexpr std::array<PartText, kNumParts> kPartTexts = {{
    {"main weight", "what the optimizer updates"},
    {"model weight", "a copy of it that rests in the compute dtype or per shard group"},
    {"main grad", "reduced gradients, in the main weight's dtype"},
    {"optimizer", "its state"},
    {"gathered weights", "of units in use or on their way"},
    {"gradients on their way", "collected and reduced, with staging and partial sums"},
    {"idle buffers", "held for other moments of the step"},
    {"activations", "kept for the backward, and gradients of them"},
    {"loss", "logits and what is made of them"},
    {"products", "code that oneDNN makes for each size of product, and keeps"},
    {"reserve", "set aside: context, communicators, fragmentation, pages of a disk"},
}};

std::string where_of(const PlannedModel& model, const Moment& moment) {
  const auto unit = static_cast<size_t>(moment.unit);
  const std::string& name = unit < model.blocks.size() ? model.blocks[unit].name : model.root.name;
  switch (moment.phase) {
    case Moment::Phase::kForward:
      return "end of the forward of " + name;
    case Moment::Phase::kLoss:
      return "loss";
    case Moment::Phase::kBackward:
      return "backward of " + name;
    case Moment::Phase::kReduce:
      return "start of the reduction of " + name;
  }
  return {};
}

// What is in memory of a state on a disk: buffers (DiskBuffers::kMostKept of the runtime) for what an optimizer works
// on, has read ahead and waits to be written, and gradients of two of the largest units that a reduction adds up.
int64_t disk_window(const MemoryPlan& memory, const std::vector<std::vector<GroupPlan>>& units) {
  constexpr int64_t kBuffers = int64_t{96} << 20;
  int64_t largest = 0;
  for (const std::vector<GroupPlan>& unit : units) {
    int64_t bytes = 0;
    for (const GroupPlan& group : unit) bytes += 2 * group.main_grad;
    largest = std::max(largest, bytes);
  }
  return std::min(memory.all_elsewhere(), kBuffers + largest);
}

// Beside a device the weights that are gathered rest there.
void move_elsewhere(MemoryPlan& memory, const std::vector<std::vector<GroupPlan>>& units, const Setup& setup) {
  for (const Part part : {Part::kMainWeight, Part::kMainGrad, Part::kOptimizer}) {
    std::swap(memory.bytes[static_cast<size_t>(part)], memory.elsewhere[static_cast<size_t>(part)]);
  }
  const auto copy = static_cast<size_t>(Part::kModelWeight);
  for (const std::vector<GroupPlan>& unit : units) {
    for (const GroupPlan& group : unit) {
      if (setup.transport == Transport::kNccl || group.residence != Residence::kReleased) continue;
      memory.bytes[copy] -= group.model_weight;
      memory.elsewhere[copy] += group.model_weight;
    }
  }
  if (setup.state == StatePlace::kDisk) memory.bytes[static_cast<size_t>(Part::kReserve)] += disk_window(memory, units);
}

int64_t bytes_of_products(const RankPart& rank, const Setup& setup) {
  if (setup.transport == Transport::kNccl || !rank.model.decoder) return 0;
  return product_kernel_bytes(*rank.model.decoder, setup.rank_tokens(), setup.precision.param.value_or(io::DType::F32),
                              rank.has_end() ? Head::kHere : Head::kElsewhere);
}

}  // namespace

std::string_view name(Part part) { return kPartTexts.at(static_cast<size_t>(part)).name; }

std::string_view meaning(Part part) { return kPartTexts.at(static_cast<size_t>(part)).meaning; }

int64_t MemoryPlan::at_rest() const {
  return (*this)[Part::kMainWeight] + (*this)[Part::kModelWeight] + (*this)[Part::kMainGrad] +
         (*this)[Part::kOptimizer];
}

int64_t MemoryPlan::all_elsewhere() const { return std::accumulate(elsewhere.begin(), elsewhere.end(), int64_t{0}); }

int64_t MemoryPlan::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

MemoryPlan plan_memory(const RankPart& rank, const std::vector<std::vector<GroupPlan>>& units, const StepWalk& walk,
                       int64_t reserve, const Setup& setup) {
  const PlannedModel& model = rank.model;
  MemoryPlan memory;
  const auto part = [&](Part which) -> int64_t& { return memory.bytes[static_cast<size_t>(which)]; };
  for (size_t i = 0; i < units.size(); ++i) {
    int64_t gathered = 0, gradients = 0;
    for (const GroupPlan& group : units[i]) {
      part(Part::kMainWeight) += group.main_weight;
      part(Part::kModelWeight) += group.model_weight;
      part(Part::kMainGrad) += group.main_grad;
      part(Part::kOptimizer) += group.optimizer + group.averages;
      memory.padding += group.padding;
      gathered += group.released();
      gradients += group.reduce_buffer;
    }
    if (i == model.blocks.size()) continue;
    memory.largest_gathered_block = std::max(memory.largest_gathered_block, gathered);
    memory.largest_gradient_block = std::max(memory.largest_gradient_block, gradients);
  }
  memory.peak = walk.peak();
  memory.where = where_of(model, memory.peak);
  part(Part::kGathered) = memory.peak.gathered;
  part(Part::kGradients) = memory.peak.gradients;
  part(Part::kIdle) = walk.held_bytes - memory.peak.gathered - memory.peak.gradients;
  part(Part::kActivations) = memory.peak.activations;
  part(Part::kLoss) = memory.peak.loss;
  part(Part::kProducts) = bytes_of_products(rank, setup);
  part(Part::kReserve) = reserve;
  if (setup.state != StatePlace::kMemory) move_elsewhere(memory, units, setup);
  return memory;
}

}  // namespace fsdp::plan
