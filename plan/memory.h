#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model.h"
#include "plan/rank_part.h"
#include "plan/setup.h"
#include "plan/step_walk.h"

namespace fsdp::plan {

enum class Part {
  kMainWeight,   // what the optimizer updates
  kModelWeight,  // a copy in the compute dtype, or per shard group, that rests beside it
  kMainGrad,     // from the first backward on
  kOptimizer,    // from the first step on
  kGathered,     // weights of units in use or on their way
  kGradients,    // collected or on their way, with staging and partial sums
  kIdle,         // buffers that the allocator holds for another moment of the step
  kActivations,
  kLoss,      // logits and their gradients
  kProducts,  // what oneDNN keeps of products: product_kernel_bytes()
  kReserve,   // what the caller sets aside: context and communicators of a GPU; pages on their way to and from a disk
};
inline constexpr size_t kNumParts = 11;
std::string_view name(Part part);
std::string_view meaning(Part part);

// Bytes of one rank, of every part, at the moment of a steady step at which most is held.
struct MemoryPlan {
  std::array<int64_t, kNumParts> bytes{};
  std::array<int64_t, kNumParts> elsewhere{};  // of parts that are in the host's memory or on a disk instead
  int64_t padding = 0;                         // part of the main weight that belongs to no parameter
  Moment peak{};
  std::string where;  // the peak, in words: "backward of model.layers.79"
  // Largest block, for what two of them take.
  int64_t largest_gathered_block = 0;
  int64_t largest_gradient_block = 0;

  int64_t operator[](Part part) const { return bytes[static_cast<size_t>(part)]; }
  // There and elsewhere.
  int64_t size_of(Part part) const { return (*this)[part] + elsewhere[static_cast<size_t>(part)]; }
  int64_t all_elsewhere() const;
  int64_t at_rest() const;  // weights, gradients, optimizer
  int64_t total() const;
};

// `reserve`: bytes of the caller's, for Part::kReserve.
MemoryPlan plan_memory(const RankPart& part, const std::vector<std::vector<GroupPlan>>& units, const StepWalk& walk,
                       int64_t reserve, const Setup& setup);

}  // namespace fsdp::plan
