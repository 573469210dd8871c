#include "train/model/replica_check.h"

#include <ATen/ATen.h>

#include <map>
#include <nlohmann/json.hpp>

#include "io/base/hash.h"
#include "train/axes/whole_parameter.h"
#include "train/base/agreement.h"

namespace fsdp::train {
namespace {

std::string hashes_of(const ShardedModel& model) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    const LocalRange range = local_range(leaf);
    if (range.begin == range.end) continue;
    const at::Tensor bytes = leaf.detach().cpu().contiguous();
    const uint64_t hash = io::hash_bytes({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
    list.push_back({name + " " + slice_text(leaf), hash});
  }
  return list.dump();
}

struct Holder {
  size_t rank;
  uint64_t hash;
};

}  // namespace

void compare_replicas(const World& world, const ShardedModel& model, int64_t step) {
  const std::vector<std::string> tables = gather_strings(world, hashes_of(model));
  std::map<std::string, Holder> first;
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    for (const auto& row : nlohmann::json::parse(tables[rank])) {
      const auto place = row[0].get<std::string>();
      const auto [holder, is_new] = first.try_emplace(place, Holder{rank, row[1]});
      if (is_new || holder->second.hash == row[1].get<uint64_t>()) continue;
      throw AgreedError(
          ErrorCode::kInternal,
          "[train] step " + std::to_string(step) + ": " + place + ": got other bits on rank " + std::to_string(rank) +
              " than on rank " + std::to_string(holder->second.rank) +
              ", expected equal replicas. Test the memory of both machines, and resume from a checkpoint.",
          /*told_elsewhere=*/world.rank != 0);
    }
  }
}

}  // namespace fsdp::train
