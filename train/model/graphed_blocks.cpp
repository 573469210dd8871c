#include "train/model/graphed_blocks.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/graph/graphed_function.h"

namespace fsdp::train {

void check_graphs(const Config& config) {
  if (!config.train.cuda_graphs) return;
  const auto refuse = [](const std::string& with, const std::string& fix) {
    throw Error(ErrorCode::kUsage, "[config] train.cuda_graphs: got true with " + with + "; " + fix);
  };
  if (config.shard.device != "cuda") refuse("shard.device = \"cpu\"", "set that to \"cuda\", or this to false.");
  if (config.train.recompute != "none") {
    refuse("train.recompute = \"" + config.train.recompute + "\"",
           "models that launching slows down are too small to need it: set it to \"none\", or this to false.");
  }
}

void keep_addresses(ShardOptions& options) { options.allocator = AllocatorOptions::traced(); }

void graph_blocks(ShardedModel& model) {
  const auto graphs = std::make_shared<std::vector<GraphedFunction>>();
  for (const auto& layer : *model.decoder->layers()) graphs->emplace_back(layer->parameters());
  model.decoder->set_block_runner([graphs](int64_t number, const models::Block& block, const at::Tensor& x_BTE,
                                           const models::AttentionInputs& inputs) {
    if (!inputs.document_lengths.empty() || inputs.cache != nullptr) return block(x_BTE, inputs);
    const auto call = [block](const std::vector<at::Tensor>& in) {
      models::AttentionInputs own;
      own.cos = in[1];
      own.sin = in[2];
      return std::vector<at::Tensor>{block(in[0], own)};
    };
    return graphs->at(static_cast<size_t>(number))(call, {x_BTE, inputs.cos, inputs.sin})[0];
  });
}

}  // namespace fsdp::train
