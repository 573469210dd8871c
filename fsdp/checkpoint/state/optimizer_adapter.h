#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// Something that an optimizer remembers of one leaf, by reference.
struct LeafTensor {
  std::string name;
  at::Tensor tensor;  // like the leaf, but one number for each `block` of its elements
  int64_t block = 1;
};

// What an optimizer remembers of one leaf.
struct LeafState {
  int64_t steps = 0;  // updates so far; 0 where the optimizer does not count
  std::vector<LeafTensor> tensors;
};

// Any elementwise optimizer, as a checkpoint sees it. Local.
class OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter() = default;
  virtual std::vector<at::Tensor> leaves() const = 0;
  // Nothing (no steps, no tensors) for a leaf that was never updated.
  virtual LeafState get(const at::Tensor& leaf) = 0;
  // The state of a leaf that was updated, as the options of its group want it; to be filled by the caller once it is
  // installed.
  virtual LeafState make(const at::Tensor& leaf) = 0;
  // Leaves have a state before their first update.
  virtual bool has_state_from_start() const { return false; }
  // A checkpoint without any of it fits: then every leaf is as if it had never been updated.
  virtual bool may_be_missing() const { return false; }
  // Everything that was made takes the place of what was.
  virtual void install() = 0;
  virtual void set_steps(const at::Tensor& leaf, int64_t steps) = 0;
  // As if the leaf had never been updated.
  virtual void forget(const at::Tensor& leaf) = 0;
  // Of its groups.
  virtual std::vector<double> learning_rates() const = 0;
  virtual void set_learning_rates(const std::vector<double>& rates) = 0;
};

// Throws Error(kUsage) for an optimizer it does not know.
std::unique_ptr<OptimizerAdapter> adapt(const OptimizerRef& optimizer);

}  // namespace fsdp::checkpoint
