#include "train/model/build_model.h"

#include <utility>

#include "train/base/agreement.h"
#include "train/model/fp8_layers.h"
#include "train/model/graphed_blocks.h"
#include "train/model/lora_files.h"
#include "train/model/recomputation.h"
#include "train/model/weights.h"

namespace fsdp::train {

ShardedModel build_model(const ModelChoice& choice, const Tuning& tuning, const Config& config, const World& world,
                         c10::Device device) {
  const bool load = choice.weights.has_value();
  const auto seed = static_cast<uint64_t>(config.train.seed);
  // Deferred: block by block gets its values when it is sharded, and no rank ever holds the whole model.
  models::Decoder decoder = deferred([&] {
    models::Decoder whole(choice.config, at::TensorOptions().dtype(base_type(tuning, config.shard)));
    load ? zero_parameters(*whole) : whole->reset_parameters(seed);
    apply_tuning(tuning, whole, seed);
    return whole;
  });
  use_fp8(decoder, config.shard);
  set_recomputation(decoder, parse_recomputation(config.train.recompute, config.train.recompute_every));
  ShardOptions options = shard_options(config.shard, device);
  options.layout = root_layout(config.optimizer);
  if (config.train.cuda_graphs) keep_addresses(options);
  ShardedModel model =
      parallelize(std::move(decoder), make_mesh(world, config.shard.replicas), options, block_layout(config.optimizer));
  set_projections(model, config.train.projections);
  if (config.train.cuda_graphs) graph_blocks(model);
  if (load) {
    on_all_ranks(world, [&] {
      load_weights(model, *choice.weights);
      if (!config.tune.lora_from.empty()) load_adapter(model, *tuning.lora, config.tune.lora_from);
    });
  }
  return model;
}

}  // namespace fsdp::train
