#pragma once

#include <string>

#include "fsdp/fsdp.h"
#include "train/config/config.h"

namespace fsdp::train {

// All ranks as the axes "replicate", "shard" and "tp", of which the last has neighbours. "tp" is left out where it has
// one rank. Throws Error(kUsage), naming the key and what would do, if shard.replicas and mesh.tp do not divide the
// ranks.
Mesh make_mesh(const World& world, int64_t replicas, const MeshConfig& axes = {});

// What a rank has of the work, by its place in that mesh.
struct RankPlace {
  // Its part of the sequences of each batch, one of so many; ranks along "tp" have the same.
  int data_index = 0;
  int num_data = 1;
  // Over how many ranks each layer is cut.
  int num_tensor = 1;
  // Whether its losses count where those of all ranks are added up: along "tp" all have the same.
  bool counts_losses = true;
};
RankPlace rank_place(const Mesh& mesh);

// "4 rank(s) (fsdp launch), each layer cut over 2".
std::string describe_ranks(const World& world, const RankPlace& place);
// "ranks share memory".
std::string describe_transport(const World& world);

}  // namespace fsdp::train
