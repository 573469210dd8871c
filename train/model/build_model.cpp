#include "train/model/build_model.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "io/weights/adapter.h"
#include "train/axes/axes.h"
#include "train/axes/decoder_pipeline.h"
#include "train/axes/expert_places.h"
#include "train/base/agreement.h"
#include "train/config/sum_tree.h"
#include "train/model/adapters/principal_start.h"
#include "train/model/fp8_layers.h"
#include "train/model/graphed_blocks.h"
#include "train/model/lora_files.h"
#include "train/model/narrow_products.h"
#include "train/model/recomputation.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

// One parameter after the other, so that where they are cut no two are whole at a time.
void set_parameters(models::Decoder& whole, const ModelChoice& choice, uint64_t seed, const Axes* axes,
                    const ExpertPlaces* experts) {
  const at::NoGradGuard no_grad;
  for (const auto& item : whole->named_parameters()) {
    if (io::is_adapter_name(item.key())) {
      // has its values
    } else if (choice.weights) {
      item.value().zero_();
    } else {
      whole->reset_parameter(item.key(), item.value(), seed);
    }
    if (axes != nullptr) axes->cut(item.key(), item.value());
    if (experts != nullptr) cut_experts(item.key(), item.value(), *experts->ranks());
  }
}

// Disks may be each host's own.
void make_offload_folder(ShardOptions& options, const std::string& otherwise, const World& world) {
  if (options.offload_folder.empty()) options.offload_folder = otherwise;
  on_all_ranks(world, [&] {
    std::error_code error;
    std::filesystem::create_directories(options.offload_folder, error);
    if (!error) return;
    throw Error(ErrorCode::kFileSystem, "[train] shard.offload_folder: " + options.offload_folder.string() +
                                            " cannot be made: " + error.message() + ". Choose another folder.");
  });
}

void keep_stage(models::Decoder& whole, const std::vector<models::BlockRange>& stages, const Mesh& mesh) {
  whole->keep_blocks(models::stages_of_rank(stages, mesh.index("pp"), mesh.size("pp")));
}

// Names and sizes, without memory.
std::vector<WholeTensor> outline_of(const ModelChoice& choice, const Tuning& tuning) {
  const models::Decoder outline = deferred([&] {
    models::Decoder whole(choice.config);
    apply_tuning(tuning, whole, /*seed=*/0);
    return whole;
  });
  std::vector<WholeTensor> tensors;
  for (const auto& item : outline->named_parameters()) {
    tensors.push_back({item.key(), item.value().sizes().vec(), item.value().requires_grad()});
  }
  return tensors;
}

void connect_stages(ShardedModel& model, const ModelChoice& choice, const Tuning& tuning, const Config& config,
                    const Mesh& mesh, const std::vector<models::BlockRange>& stages) {
  model.pipeline =
      std::make_shared<DecoderPipeline>(mesh, model.decoder, model.root, stages, parse_order(config.mesh.schedule));
  model.of_all_stages = outline_of(choice, tuning);
}

// COLLECTIVE.
void load_base(ShardedModel& model, const io::ModelFolder& folder, const Tuning& tuning, const World& world,
               uint64_t seed) {
  if (tuning.init == LoraInit::kRandom) return on_all_ranks(world, [&] { load_weights(model, folder); });
  on_all_ranks(world, [&] { check_names_and_shapes(model, folder); });
  auto start = std::make_shared<AdapterStart>(principal_start(model, world, folder, *tuning.lora, seed));
  on_all_ranks(world, [&] {
    load_weights(model, folder, start.get());
    begin_with(model, *start);
  });
  if (world.rank == 0) model.start = std::move(start);
}

}  // namespace

ShardedModel build_model(const ModelChoice& choice, const Tuning& tuning, const Config& config, const World& world,
                         c10::Device device) {
  const bool load = choice.weights.has_value();
  const auto seed = static_cast<uint64_t>(config.train.seed);
  const Mesh mesh = make_mesh(world, config.shard.replicas, config.mesh);
  const std::shared_ptr<Axes> axes =
      Axes::of(mesh, exchange_on(config.shard.device, config.mesh.cp_exchange), choice.config.num_key_value_heads);
  const auto experts = choice.config.experts.count > 0 ? std::make_shared<ExpertPlaces>(mesh) : nullptr;
  const bool in_stages = mesh.size("pp") > 1;
  std::vector<models::BlockRange> stages;
  if (in_stages) {
    const int64_t count = config.mesh.pp * config.mesh.stages_per_rank;
    stages = models::cut_into_stages(choice.config, config.data.sequence_length, count);
  }
  // Deferred: block by block gets its values when it is sharded, and no rank ever holds the whole model.
  models::Decoder decoder = deferred([&] {
    models::Decoder whole(choice.config, at::TensorOptions().dtype(base_type(tuning, config.shard)));
    if (in_stages) keep_stage(whole, stages, mesh);
    apply_tuning(tuning, whole, seed);  // of whole maps
    set_parameters(whole, choice, seed, axes.get(), experts.get());
    return whole;
  });
  if (axes) axes->connect(decoder);
  if (experts) decoder->set_expert_ranks(experts);
  use_fp8(decoder, config.shard);
  use_narrow_products(decoder, config.shard);
  set_recomputation(decoder, parse_recomputation(config.train.recompute, config.train.recompute_every));
  ShardOptions options = shard_options(config.shard, device);
  if (options.main_weights == MainWeights::kOnDisk) make_offload_folder(options, config.output.folder, world);
  options.layout = root_layout(config.optimizer);
  options.sum_order = sum_order(config.train);
  if (config.train.cuda_graphs) keep_addresses(options);
  ShardedModel model = parallelize(std::move(decoder), mesh, options, block_layout(config.optimizer));
  model.axes = axes;
  if (in_stages) connect_stages(model, choice, tuning, config, mesh, stages);
  set_projections(model, config.train.projections);
  if (config.train.cuda_graphs) graph_blocks(model);
  if (load) {
    load_base(model, *choice.weights, tuning, world, seed);
    if (!config.tune.lora_from.empty()) load_adapter(model, world, *tuning.lora, config.tune.lora_from);
  }
  return model;
}

}  // namespace fsdp::train
