// The only file that knows both the model and the library.
#include "train/model/parallelize.h"

#include <torch/nn/module.h>

#include "models/nf4_base.h"
#include "train/config/precision_checks.h"

namespace fsdp::train {

std::vector<WholeTensor> whole_tensors(const ShardedModel& model) {
  if (!model.of_all_stages.empty()) return model.of_all_stages;
  std::vector<WholeTensor> tensors;
  const auto coded = models::coded_weights(model.decoder);
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    const auto codes = coded.find(name);
    if (codes != coded.end()) {
      tensors.push_back({codes->second.name, {codes->second.out, codes->second.in}, /*trains=*/false});
    } else {
      tensors.push_back({name, whole_sizes(leaf), leaf.requires_grad()});
    }
  }
  return tensors;
}

std::string stored_precision_name(const ShardConfig& config) {
  if (config.precision == "fp8") return "bf16";
  return config.precision == "o1" ? "fp32" : config.precision;
}

Precision stored_precision(const ShardConfig& config) {
  if (keeps_narrow_weights(config)) return {.param = at::kBFloat16};  // as is all that follows from the weights
  return parse_precision(stored_precision_name(config));
}

c10::Device computing_device(const models::Decoder& decoder) { return decoder->parameters().front().device(); }

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
  if (config.offload == "host") options.main_weights = MainWeights::kOnHost;
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
  if (!config.wants_whole_matrices()) return root_layout(config);
  return {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
}

namespace {

const models::DecoderLayerImpl& some_block(const models::Decoder& decoder) {
  for (const auto& layer : *decoder->layers()) {
    if (const auto* block = layer->as<models::DecoderLayer>()) return *block;
  }
  throw Error(ErrorCode::kInternal, "[train] a decoder without blocks");
}

// Has it parameters in one block and nowhere else?
bool is_only_block(const models::Decoder& decoder) {
  return some_block(decoder).parameters().size() == decoder->parameters().size();
}

}  // namespace

ShardedModel parallelize(models::Decoder decoder, const Mesh& all_axes, const ShardOptions& options,
                         const std::optional<LayoutOptions>& blocks) {
  const Mesh mesh = sharding_mesh(all_axes);
  ShardOptions of_blocks = options;
  of_blocks.layout = blocks.value_or(options.layout);
  std::vector<Unit> units;
  std::vector<std::string> prefixes;
  const bool is_stage = !decoder->has_first_block() || !decoder->has_last_block();
  models::Linear embedding = decoder->embed_tokens();
  if (is_stage && decoder->config().tie_word_embeddings && !embedding.is_empty()) {
    prefixes.emplace_back("model.embed_tokens.");
    units.push_back(fully_shard(*embedding, mesh, options));
  }
  const bool is_one_block = is_stage && is_only_block(decoder);
  int64_t number = 0;
  for (const auto& layer : *decoder->layers()) {
    const std::string prefix = "model.layers." + std::to_string(number++) + ".";
    const auto* block = layer->as<models::DecoderLayer>();
    if (block == nullptr) continue;
    if ((all_axes.has("ep") || all_axes.has("tp")) && !block->mixture().is_empty()) {
      models::Experts experts = block->mixture()->experts();
      fully_shard(*experts, expert_sharding_mesh(all_axes), of_blocks);
    }
    if (is_one_block) continue;
    prefixes.push_back(prefix);
    units.push_back(fully_shard(*layer, mesh, of_blocks));
  }
  Unit root = fully_shard(*decoder, mesh, is_one_block ? of_blocks : options);
  root.set_gradient_divide_factor(1);
  units.push_back(root);
  prefixes.emplace_back("");
  return {std::move(decoder), std::move(units), std::move(prefixes), root, rank_place(all_axes)};
}

void set_projections(ShardedModel& model, const std::string& projections) {
  if (projections == "separate") return;
  const models::DecoderLayerImpl& layer = some_block(model.decoder);
  const bool fuses_attention = !layer.attention().is_empty() && layer.attention()->can_fuse_projections();
  const bool fuses_mlp = !layer.mlp().is_empty() && layer.mlp()->can_fuse_projections();
  if (!fuses_attention && !fuses_mlp) {
    throw Error(ErrorCode::kUsage,
                "[config] train.projections: got fused, but no weights of one input lie side by side in this model: "
                "expected sizes whose products are multiples of 16 bytes. Set it to separate.");
  }
  model.decoder->set_projections(models::Projections::kFused);
}

}  // namespace fsdp::train
