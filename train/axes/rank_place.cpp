#include "train/axes/rank_place.h"

#include <numeric>
#include <string>
#include <vector>

namespace fsdp::train {
namespace {

void check_divides(const World& world, int64_t product, const std::string& what) {
  if (product >= 1 && world.size % product == 0) return;
  const int64_t below = product < 1 ? 0 : world.size / product * product;
  throw Error(ErrorCode::kUsage,
              "[mesh] " + what + " for " + std::to_string(world.size) +
                  " ranks, expected a divisor of the number of ranks. Change it" +
                  (product < 1 ? ""
                               : ", or start " + (below > 0 ? std::to_string(below) + " or " : std::string()) +
                                     std::to_string(below + product) + " ranks") +
                  ".");
}

// Over "shard" and those of `others` that there are.
Mesh with_weights_over(const Mesh& mesh, const std::vector<std::string>& others) {
  std::vector<std::string> axes = {"shard"};
  for (const std::string& axis : others) {
    if (mesh.has(axis)) axes.push_back(axis);
  }
  return axes.size() > 1 ? mesh.flattened(axes, "shard") : mesh;
}

}  // namespace

Mesh make_mesh(const World& world, int64_t replicas, const MeshConfig& axes) {
  check_divides(world, replicas, "shard.replicas: got " + std::to_string(replicas));
  check_divides(world, axes.pp, "mesh.pp: got " + std::to_string(axes.pp));
  check_divides(world, axes.tp, "mesh.tp: got " + std::to_string(axes.tp));
  check_divides(world, axes.cp, "mesh.cp: got " + std::to_string(axes.cp));
  check_divides(world, axes.ep, "mesh.ep: got " + std::to_string(axes.ep));
  const int64_t product = axes.pp * replicas * axes.cp * axes.tp * axes.ep;
  const auto named = [&](const char* key, int64_t size) {
    return size > 1 ? std::pair{std::string(" x ") + key, " x " + std::to_string(size)}
                    : std::pair<std::string, std::string>{};
  };
  const auto [pp_key, pp_size] = named("mesh.pp", axes.pp);
  const auto [ep_key, ep_size] = named("mesh.ep", axes.ep);
  check_divides(world, product,
                "shard.replicas x mesh.cp x mesh.tp" + pp_key + ep_key + ": got " + std::to_string(replicas) + " x " +
                    std::to_string(axes.cp) + " x " + std::to_string(axes.tp) + pp_size + ep_size);
  const int64_t shards = world.size / product;
  std::vector<MeshAxis> list;
  if (axes.pp > 1) list.push_back({"pp", static_cast<int>(axes.pp)});
  list.push_back({"replicate", static_cast<int>(replicas)});
  list.push_back({"shard", static_cast<int>(shards)});
  if (axes.cp > 1) list.push_back({"cp", static_cast<int>(axes.cp)});
  if (axes.tp > 1) list.push_back({"tp", static_cast<int>(axes.tp)});
  if (axes.ep > 1) list.push_back({"ep", static_cast<int>(axes.ep)});
  return {world, list};
}

Mesh sharding_mesh(const Mesh& mesh) { return with_weights_over(mesh, {"cp", "ep"}); }

Mesh expert_sharding_mesh(const Mesh& mesh) { return with_weights_over(mesh, {"cp", "tp"}); }

int64_t RankPlace::token_unit() const {
  return num_context == 1 ? num_tensor : num_context * std::lcm(int64_t{2}, int64_t{num_tensor});
}

RankPlace rank_place(const Mesh& mesh) {
  RankPlace place;
  place.num_expert = mesh.size("ep");
  place.data_index =
      (mesh.index("replicate") * mesh.size("shard") + mesh.index("shard")) * place.num_expert + mesh.index("ep");
  place.num_data = mesh.size("replicate") * mesh.size("shard") * place.num_expert;
  place.num_tensor = mesh.size("tp");
  place.context_index = mesh.index("cp");
  place.num_context = mesh.size("cp");
  place.stage = mesh.index("pp");
  place.num_stages = mesh.size("pp");
  place.counts_losses = mesh.index("tp") == 0 && place.stage + 1 == place.num_stages;
  place.counts_batches = mesh.index("tp") == 0 && place.context_index == 0 && place.stage == 0;
  return place;
}

std::string describe_ranks(const World& world, const RankPlace& place) {
  return std::to_string(world.size) + " rank(s) (" + launcher_name() + ")" +
         (place.num_stages == 1 ? "" : ", layers in stages over " + std::to_string(place.num_stages)) +
         (place.num_tensor == 1 ? "" : ", each layer cut over " + std::to_string(place.num_tensor)) +
         (place.num_context == 1 ? "" : ", each sequence cut over " + std::to_string(place.num_context)) +
         (place.num_expert == 1 ? "" : ", experts spread over " + std::to_string(place.num_expert));
}

std::string describe_transport(const World& world) {
  const std::string name = transport_name(world);
  if (name == "shm + gloo") return "ranks of a host share memory, hosts talk TCP (Gloo)";
  return name == "shm" ? "ranks share memory" : name == "gloo" ? "ranks talk TCP (Gloo)" : "no other ranks";
}

}  // namespace fsdp::train
