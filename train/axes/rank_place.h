#pragma once

#include <string>

#include "fsdp/fsdp.h"
#include "train/config/config.h"

namespace fsdp::train {

// All ranks as the axes "pp", "replicate", "shard", "cp", "tp" and "ep", of which the last has neighbours. "pp" and
// those after "shard" are left out where they have one rank. Throws Error(kUsage), naming the key and what would do, if
// mesh.pp, shard.replicas, mesh.cp, mesh.tp and mesh.ep do not divide the ranks.
Mesh make_mesh(const World& world, int64_t replicas, const MeshConfig& axes = {});

// The same for fully_shard(): weights are cut over "cp" and "ep" as over "shard", whose gradients are sums over them.
Mesh sharding_mesh(const Mesh& mesh);
// The same for experts, of which ranks along "ep" have different ones and those along "tp", with tokens of their own,
// the same.
Mesh expert_sharding_mesh(const Mesh& mesh);

// What a rank has of the work, by its place in that mesh.
struct RankPlace {
  // Its part of the sequences of each batch, one of so many; ranks along "pp", "cp" and "tp" have the same.
  int data_index = 0;
  int num_data = 1;
  // Its part of each of those sequences, as zigzag.h says; ranks along "tp" have the same.
  int context_index = 0;
  int num_context = 1;
  // Over how many ranks each layer is cut.
  int num_tensor = 1;
  // Over how many ranks experts are spread; each of them has sequences of its own.
  int num_expert = 1;
  // Which part of the layers it has, of how many.
  int stage = 0;
  int num_stages = 1;
  // Whether its losses count where those of all ranks are added up: along "tp" all have the same, along "pp" the last
  // one knows them.
  bool counts_losses = true;
  // Whether what it read counts: along "pp", "cp" and "tp" all have the same.
  bool counts_batches = true;

  // Of so many tokens a sequence has to be a multiple.
  int64_t token_unit() const;
};
RankPlace rank_place(const Mesh& mesh);

// "8 rank(s) (fsdp launch), layers in 2 stages, each layer cut over 2, each sequence over 2".
std::string describe_ranks(const World& world, const RankPlace& place);
// "ranks share memory".
std::string describe_transport(const World& world);

}  // namespace fsdp::train
