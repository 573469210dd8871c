#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/schedule/schedule.h"
#include "fsdp/strategy/strategy.h"
#include "plan/time/work.h"

namespace fsdp::plan::time {

// What is gathered, freed and reduced together.
struct UnitWork {
  std::string name;
  int parent = -1;           // index of the unit around it; -1: it is a root
  int64_t gather_bytes = 0;  // of all shards, padding included, in the dtype they travel in
  int64_t reduce_bytes = 0;  // likewise, of the gradients; 0: it has none
  bool of_experts = false;   // over every `expert_ranks`-th rank of the shard group only
};

// Whether the backward of a passage reads the unit's weights; an embedding's does not.
enum class BackwardReads { kWeights, kNothing };

// Whether some of the unit's gradients are complete after a passage's backward. Those of weights that an earlier
// passage reads too are not.
enum class Arrival { kSomeGradients, kNone };

// A stretch of the forward in which the program is in one unit. The backward goes through the passages in reverse; a
// unit's gradients are complete at the end of its first passage's backward.
struct Passage {
  int unit = 0;
  int stage = 0;  // of the rank's, in a pipeline
  Work forward;
  Work backward;
  BackwardReads backward_reads = BackwardReads::kWeights;
  Arrival arrival = Arrival::kSomeGradients;
};

// One training step of one rank, as plain numbers: what it computes, what it moves, and in which order.
struct StepWork {
  std::vector<UnitWork> units;    // in the order in which they were sharded, the root last
  std::vector<Passage> passages;  // of one microbatch, in the order of the forward
  Dtype dtype = Dtype::kBf16;     // of the products
  int microbatches = 1;

  int shard_ranks = 1;                 // along the mesh's axis `shard`, `tensor_ranks` apart
  int replica_ranks = 1;               // along `replicate`
  int tensor_ranks = 1;                // that share each layer: neighbours
  int context_ranks = 1;               // of a shard group, that share sequences: the nearest of it
  int expert_ranks = 1;                // likewise, that have all experts among them
  int64_t tensor_bytes = 0;            // of all ranks together, in a call
  int64_t context_bytes = 0;           // likewise
  int64_t context_gradient_bytes = 0;  // likewise, in a ring, of gradients
  int64_t expert_bytes = 0;            // that a rank has to give in an exchange, what stays with it included
  bool holds_weights = false;  // until the last microbatch of a step, where they stay between forward and backward
  int ranks_per_node = 8;
  // Above pods of so many nodes the network is a slimmed fat tree: its links carry 1 / slimming of what the pod's nodes
  // could send. 0: all nodes are in one pod.
  int nodes_per_pod = 0;
  double slimming = 1;

  Strategy strategy = Strategy::kOptimGradsParams;
  // 1: weights are kept between forward and backward; n: 1/n of them, gathered within groups of n neighbours;
  // shard_ranks: freed. Unset: as the strategy says.
  std::optional<int> reshard_after_forward;
  ReduceTiming replica_reduce = ReduceTiming::kLastMicrobatch;
  schedule::Schedule schedule;

  double optimizer_bytes = 0;  // that clipping and the optimizer read and write on one rank
  double model_flops = 0;      // of one rank in a step, by the formula that MFU is to be counted with; 0: no MFU

  int ranks() const { return shard_ranks * replica_ranks * tensor_ranks; }
};

// Throws std::invalid_argument naming what is out of range, and what would be legal.
void check(const StepWork& work);

}  // namespace fsdp::plan::time
