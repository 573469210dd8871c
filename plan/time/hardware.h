// How fast a rank computes, and its links to other ranks. docs/plan_time.md has the source of every figure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/time/work.h"

namespace fsdp::plan::time {

// Who starts work. On a CPU the program's thread computes, so a gather starts where the program stands. For a GPU the
// host runs ahead, so a gather starts as soon as its memory is free.
enum class Execution { kProgramComputes, kHostRunsAhead };

// What transfers on one link do to each other: share its bandwidth evenly, or come one after the other in the order in
// which they were posted (comm::FabricModel).
enum class Sharing { kEven, kQueue };

// Over how many hops a collective goes: all ranks one after the other; as many as a tree is high; or its start is all.
enum class Hops { kRing, kTree, kNone };

// A rank's connection to others.
struct Link {
  double bytes_per_second = 0;  // that one rank receives; above 0
  double hop_us = 0;            // from one rank to the next of a ring, or of a tree

  bool operator==(const Link&) const = default;
};

struct Hardware {
  std::string name;
  Execution execution = Execution::kHostRunsAhead;

  // ---- products
  std::map<Dtype, double> peak_flops;  // per second; a dtype that is missing cannot be computed in
  double product_efficiency = 1;       // share of the peak that a large product reaches
  // Products are cut into tiles, which the processors of a device compute side by side: a last wave that is not full
  // costs as much as a full one. 0 processors: no tiles.
  int tile_rows = 0;
  int tile_columns = 0;
  int processors = 0;

  // ---- attention, share of the peak
  double attention_forward_efficiency = 1;
  double attention_backward_efficiency = 1;
  // Of a query of a head, beside the operations: what a row of scores costs however short it is.
  double attention_forward_row_us = 0;
  double attention_backward_row_us = 0;
  // Share of the peak where a mask tells who sees whom, as between ranks that share sequences; 0: as without one.
  double masked_attention_forward_efficiency = 0;
  double masked_attention_backward_efficiency = 0;

  // ---- everything else
  double memory_bytes_per_second = 0;
  double memory_efficiency = 1;  // share of it that operators reach which are bound by memory
  double launch_us = 0;          // of a product, beside its work
  double operator_us = 0;        // likewise of any other operator; 0: as a product

  // ---- communication
  Link node;                      // between ranks of one node
  Link network;                   // of one rank, to other nodes
  double network_efficiency = 1;  // share of both links' bandwidth that large transfers reach
  Hops hops = Hops::kRing;
  double start_us = 0;  // of a collective, beside its hops
  Sharing sharing = Sharing::kEven;
  // Transfers take processors and memory bandwidth from what is computed meanwhile, which takes (1 + this) times as
  // long.
  double slowdown_by_transfers = 0;

  double operator_cost_us() const { return operator_us > 0 ? operator_us : launch_us; }
  double flops(Dtype dtype) const;  // the peak; throws std::invalid_argument naming what this hardware has
  bool operator==(const Hardware&) const = default;
};

// Throws std::invalid_argument naming the field that is out of range.
void check(const Hardware& hardware);

// What training reaches of the rates that benchmarks of single operators reach, on all GPUs alike. The defaults were
// fitted to published runs on 8 GPUs, and to nothing else: benchmarks/plan_published.cpp.
struct Shares {
  double products = 0.93;     // of the largest rate that products were seen to reach
  double attention = 1.1175;  // of FlashAttention-2's published rate
  double memory = 0.4025;     // of the memory's bandwidth
  double slowdown = 0.1575;   // Hardware::slowdown_by_transfers
};

// "a100-80gb", "h100-sxm", "h200", "b200": nodes have 8 GPUs and 8 network cards. "cpu-core": a core of a server, ranks
// that share its memory.
std::vector<std::string> hardware_names();

// Throws std::invalid_argument with all names.
Hardware find_hardware(const std::string& name, const Shares& shares = {});

}  // namespace fsdp::plan::time
