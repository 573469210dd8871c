#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/state/state.h"

// State of a sharded model, or of its optimizer, as tensors in host memory: to keep, to compare, to send, to write in a
// format of one's own. Files that survive faults and other numbers of ranks are fsdp/checkpoint/checkpoint.h. After:
// PyTorch FSDP1's state-dict types, torch.distributed.checkpoint.state_dict.
namespace fsdp {

// Tensors by the names that the unsharded model has, in the main weights' dtype; of an optimizer
// `<tensor>/<parameter>` ("exp_avg/layers.0.weight", "step/layers.0.weight"). Values: learning rates.
struct StateDict {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> values;
};

// Who has, or gets, the tensors of a full one.
enum class DictHolder { kEveryRank, kRankZero };

using checkpoint::ModelRef;
using checkpoint::OptimizerRef;

// COLLECTIVE over the world. Whole tensors, copies, one at a time through the ranks; of buffers rank 0's. Ranks that
// hold nothing get an empty one.
StateDict full_state_dict(const ModelRef& model, DictHolder holder = DictHolder::kEveryRank);
StateDict full_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer,
                                    DictHolder holder = DictHolder::kEveryRank);

// COLLECTIVE over the world. Each rank takes its slices; with kRankZero rank 0's tensors travel, and the others' are
// not looked at. Throws Error(kUsage) on every rank if tensors are missing, surplus or of another shape, all named at
// once; then nothing was written.
void load_full_state_dict(const ModelRef& model, const StateDict& dict, DictHolder holder = DictHolder::kEveryRank);
void load_full_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer, const StateDict& dict,
                                    DictHolder holder = DictHolder::kEveryRank);

// COLLECTIVE over the world. Gradients of the leaves, whole and as the optimizer would see them; parameters that have
// none on any rank are left out.
StateDict full_gradients(const ModelRef& model, DictHolder holder = DictHolder::kEveryRank);

// What this rank has: slices of main weights, its own buffers. Copies.
struct ShardedStateDict {
  std::vector<checkpoint::TensorSlice> slices;
  std::map<std::string, std::string> values;
};
// Local.
ShardedStateDict sharded_state_dict(const ModelRef& model);
ShardedStateDict sharded_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer);

// COLLECTIVE over the world. Into a model that is cut the same way. Throws Error(kUsage) likewise, also where a slice
// begins or ends elsewhere.
void load_sharded_state_dict(const ModelRef& model, const ShardedStateDict& dict);
void load_sharded_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer,
                                       const ShardedStateDict& dict);

}  // namespace fsdp
