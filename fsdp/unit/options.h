#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/group/main_weights.h"
#include "fsdp/group/whole_weights.h"
#include "fsdp/layout/owners.h"
#include "fsdp/layout/planner.h"
#include "fsdp/mesh/mesh.h"
#include "fsdp/precision/precision.h"
#include "fsdp/schedule/schedule.h"
#include "fsdp/strategy/strategy.h"
#include "fsdp/strategy/sum_order.h"

namespace fsdp {

// What happens to the weights a model has when it is sharded.
enum class InitialWeights {
  kVerify,     // a digest refuses ranks that start different, and names them (default)
  kBroadcast,  // rank 0's weights go to all
};

// How the flat buffer of a group may be cut: a granule is never split between two ranks.
struct LayoutOptions {
  layout::Granularity granularity = layout::Granularity::kElement;
  int64_t block = 1;  // elements, for Granularity::kBlock
  layout::Owners owners = layout::Owners::kInOrder;
};

// What is left of the gathered weights between forward and backward: true, only this rank's shard; false, all of them;
// n, this rank's part between n neighbouring ranks (those of one host, say), so that the backward gathers inside that
// group. n must divide the size of the shard axis.
using ReshardAfterForward = std::variant<bool, int>;

// What a step does with a unit that it left out. A step is a backward that reduced gradients of the unit's root.
enum class UnusedUnit {
  kSkip,   // no gradient: optimizers leave its parameters alone. Every rank must leave it out, or none (default)
  kZeros,  // for units whose use depends on a rank's data: gathered together with its parent on every rank, kept to the
           // end of the backward and reduced there; ranks that left it out count as zero
  kError,  // thrown at the end of the backward, naming the unit
};

// What becomes of buffers (BatchNorm's running statistics) that every rank computes from its own data.
enum class BufferSync {
  kPerRank,    // they differ (default)
  kMean,       // floating point: the mean over the ranks; integers: rank 0's
  kBroadcast,  // rank 0's
};

// What becomes of the gradients of ShardOptions::ignored_parameters, which every rank computes from its own data.
enum class IgnoredGradients {
  kPerRank,  // they differ (default)
  // The mean over all ranks, whatever GradScale says, at the end of each backward that reduced gradients of the root
  // for an optimizer step; of a sum of microbatches once, in the last. Where no rank has one there is none; where some
  // have one, the others count as zero. COLLECTIVE. After: PyTorch DDP, which averages what FSDP leaves alone.
  kMean,
};

// What becomes of a gathered weight that an operator of the model writes into: data-dependent initialisation, codebooks
// that are moving averages, weights that are normed in place.
enum class WeightWrites {
  kRefused,   // an error that names operator and parameter (default); a world of one may write
  kRankZero,  // rank 0's values become everybody's, and those of the main weight, before the next operator reads them
  kMean,      // the mean of the ranks' values does
};

// Everything fully_shard() can be told. The defaults suit a 3B model on 8 devices.
struct ShardOptions {
  Strategy strategy = Strategy::kOptimGradsParams;
  std::optional<ReshardAfterForward> reshard_after_forward = {};  // unset: what the strategy says
  // On a mesh with replicas: when gradients are added up over them. Unit::set_requires_all_reduce() can hold them back.
  ReduceTiming replica_reduce = ReduceTiming::kLastMicrobatch;
  Precision precision = {};
  LayoutOptions layout = {};
  // With SumOrder::kTree no border between ranks cuts blocks of 256 elements either, and clip_grad_norm_() adds up
  // exactly. docs/precision.md says what a program does for equal bits on any number of ranks.
  SumOrder sum_order = SumOrder::kAsTheyCome;
  InitialWeights initial_weights = InitialWeights::kVerify;
  // These stay as they are: not sharded, not gathered, their gradients not reduced.
  std::vector<at::Tensor> ignored_parameters = {};
  IgnoredGradients ignored_gradients = IgnoredGradients::kPerRank;
  // Parameters that every rank keeps whole, as Strategy::kNoShard would, by the name they have in the module. They make
  // groups of their own in the unit. Every rank must say the same.
  std::function<bool(const std::string& name)> replicate = {};
  // Parameters that are cut over another mesh of the same world, by the name they have in the module; nothing: the mesh
  // of the call. Parameters of one mesh, dtype and trainability make one group of the unit.
  std::function<std::optional<Mesh>(const std::string& name)> mesh_of = {};
  UnusedUnit unused = UnusedUnit::kSkip;
  // Of this unit's parameters. Every rank must run the same writing operators, which the next touch makes COLLECTIVE.
  // Writes by set_data() are refused always.
  WeightWrites writes = WeightWrites::kRefused;
  // Of all buffers below a root: at the end of each backward that reduced gradients for an optimizer step. COLLECTIVE.
  BufferSync buffers = BufferSync::kPerRank;
  WholeWeights whole_weights = WholeWeights::kInPlace;
  MainWeights main_weights = MainWeights::kOnDevice;
  std::filesystem::path offload_folder = {};  // of MainWeights::kOnDisk: exists, on a fast disk of this host
  // Where the weights live from then on; unset: where the parameters are. A model that was built on the CPU, deferred
  // or not, gets to a GPU this way without ever being there as a whole; its buffers stay, so move them (Module::to)
  // before.
  std::optional<c10::Device> device = {};
  // Of all units of the world; later calls of fully_shard() must agree with the first.
  schedule::Schedule schedule = {};
  AllocatorOptions allocator = {};
};

// What all units of a world have in common.
struct ContextOptions {
  schedule::Schedule schedule;
  AllocatorOptions allocator;

  bool operator==(const ContextOptions&) const = default;
};

}  // namespace fsdp
