// One rank of many, for real, on a machine that has no others.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/comm/connection.h"
#include "train/config/config.h"

namespace fsdp::train {

// Ranks of which only rank 0 exists, and the network between them.
struct SimulatedWorld {
  int64_t ranks = 0;
  comm::FabricModel network;
  std::string origin;  // of the network's figures: "default", "--simulate-hardware h100-sxm"
  int64_t steps = 10;  // that are run, of which the last tells what a step moves
};

// Runs steps of rank 0 of that world: the configuration's model, mesh, strategy and precision, and rank 0's share of
// its data, through comm::connect_fabric(). Prints each step's milliseconds, what of them was waited for, and at the
// end calls, bytes and memory beside the plan. Losses mean nothing, so none is shown and the learning rate is 0.
// Nothing is read from or written to output.folder, and weights are drawn at random: of the configuration, checkpoints,
// resuming, samples, evaluations and the model to load are left out, which a line says. Returns the exit code. Throws
// Error(kUsage) for a number of ranks that the mesh or the batch does not fit, naming what would be legal.
int run_simulated(Config config, const SimulatedWorld& simulated);

}  // namespace fsdp::train
