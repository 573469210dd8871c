// The only file that knows both the model and the library.
#include "train/model/parallelize.h"

#include <torch/nn/module.h>

#include "train/config/precision_checks.h"

namespace fsdp::train {

std::string stored_precision_name(const ShardConfig& config) {
  if (config.precision == "fp8") return "bf16";
  return config.precision == "o1" ? "fp32" : config.precision;
}

Precision stored_precision(const ShardConfig& config) {
  if (keeps_narrow_weights(config)) return {.param = at::kBFloat16};  // as is all that follows from the weights
  return parse_precision(stored_precision_name(config));
}

at::ScalarType multiplied_type(const ShardConfig& config) {
  return config.precision == "o1" ? at::kBFloat16 : stored_precision(config).param.value_or(at::kFloat);
}

ShardOptions shard_options(const ShardConfig& config, c10::Device device) {
  ShardOptions options;
  options.strategy = parse_strategy(config.strategy);
  if (!device.is_cpu()) options.device = device;
  options.precision = stored_precision(config);
  if (config.fp8_gather) options.precision.gather = at::kFloat8_e4m3fn;
  if (config.reshard_after_forward != "auto") {
    options.reshard_after_forward = config.reshard_after_forward == "true";
  }
  if (config.whole_weights == "copied") options.whole_weights = WholeWeights::kCopied;
  if (config.offload == "disk") {
    options.main_weights = MainWeights::kOnDisk;
    options.offload_folder = config.offload_folder;
  }
  options.schedule = schedule::Schedule::static_order(static_cast<int>(config.prefetch_depth));
  return options;
}

void zero_parameters(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module.parameters()) {
    parameter.zero_();
  }
}

models::Decoder deferred_zeros(const models::DecoderConfig& config) {
  return deferred([&] {
    models::Decoder whole(config);
    zero_parameters(*whole);
    return whole;
  });
}

LayoutOptions root_layout(const OptimizerConfig& config) {
  if (config.name != "adamw_8bit") return {};
  return {.granularity = layout::Granularity::kBlock, .block = kCodeBlock};
}

LayoutOptions block_layout(const OptimizerConfig& config) {
  if (config.name != "muon") return root_layout(config);
  return {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
}

ShardedModel parallelize(models::Decoder decoder, const Mesh& all_axes, const ShardOptions& options,
                         const std::optional<LayoutOptions>& blocks) {
  const Mesh mesh = sharding_mesh(all_axes);
  ShardOptions of_blocks = options;
  of_blocks.layout = blocks.value_or(options.layout);
  std::vector<Unit> units;
  std::vector<std::string> prefixes;
  for (const auto& layer : *decoder->layers()) {
    const models::Mixture& mixture = layer->as<models::DecoderLayer>()->mixture();
    if (all_axes.has("ep") && !mixture.is_empty()) {
      models::Experts experts = mixture->experts();
      fully_shard(*experts, expert_sharding_mesh(all_axes), of_blocks);
    }
    prefixes.push_back("model.layers." + std::to_string(units.size()) + ".");
    units.push_back(fully_shard(*layer, mesh, of_blocks));
  }
  Unit root = fully_shard(*decoder, mesh, options);
  root.set_gradient_divide_factor(1);
  units.push_back(root);
  prefixes.emplace_back("");
  return {std::move(decoder), std::move(units), std::move(prefixes), root, rank_place(all_axes)};
}

void set_projections(ShardedModel& model, const std::string& projections) {
  if (projections == "separate") return;
  const auto* layer = model.decoder->layers()->ptr(0)->as<models::DecoderLayer>();
  const bool fuses_attention = !layer->attention().is_empty() && layer->attention()->can_fuse_projections();
  const bool fuses_mlp = !layer->mlp().is_empty() && layer->mlp()->can_fuse_projections();
  if (!fuses_attention && !fuses_mlp) {
    throw Error(ErrorCode::kUsage,
                "[config] train.projections: got fused, but no weights of one input lie side by side in this model: "
                "expected sizes whose products are multiples of 16 bytes. Set it to separate.");
  }
  model.decoder->set_projections(models::Projections::kFused);
}

}  // namespace fsdp::train
