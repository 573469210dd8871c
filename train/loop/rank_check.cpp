#include "train/loop/rank_check.h"

#include <string>

#include "fsdp/comm/collectives.h"
#include "train/base/agreement.h"
#include "train/config/config_file.h"
#include "train/loop/run_state.h"

namespace fsdp::train {

void check_ranks_agree(const World& world, const Config& config, const PackedSplit& data) {
  const auto contents = gather_strings(world, describe_content(config, data));
  const auto configs = gather_strings(world, config_to_toml(config));
  for (size_t rank = 1; rank < configs.size(); ++rank) {
    const std::string name = "[train] rank " + std::to_string(rank);
    if (contents[rank] != contents[0]) {
      throw AgreedError(ErrorCode::kData,
                        name + " has " + contents[rank] + ", rank 0 has " + contents[0] +
                            ". Give all ranks the same data.path with the same content.",
                        world.rank != 0);
    }
    if (configs[rank] != configs[0]) {
      throw AgreedError(ErrorCode::kUsage,
                        name + " was started with another configuration than rank 0. Start all alike.",
                        world.rank != 0);
    }
  }
}

}  // namespace fsdp::train
