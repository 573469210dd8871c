#include "train/model/planned_run.h"

#include <algorithm>

#include "fsdp/fsdp.h"
#include "kernels/products/fp8_weights.h"
#include "models/nf4_base.h"
#include "train/axes/axes.h"
#include "train/config/precision_checks.h"
#include "train/config/sum_tree.h"
#include "train/model/fp8_layers.h"
#include "train/model/parallelize.h"
#include "train/model/recomputation.h"
#include "train/model/tuning.h"

namespace fsdp::train {
namespace {

io::DType planned_type(at::ScalarType dtype) {
  if (dtype == at::kHalf) return io::DType::F16;
  if (dtype == at::kByte) return io::DType::U8;
  return dtype == at::kBFloat16 ? io::DType::BF16 : io::DType::F32;
}

plan::PlannedParameter planned_parameter(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.sizes().vec(), planned_type(tensor.scalar_type()), tensor.requires_grad()};
}

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, "[plan] " + message); }

plan::Optimizer optimizer_of(const Config& config) {
  if (keeps_narrow_weights(config.shard) && config.optimizer.name == "adamw") return plan::Optimizer::kAdamWCompensated;
  const bool sgd_keeps_momentum = config.optimizer.name == "sgd" && config.optimizer.momentum > 0;
  return plan::parse_optimizer(sgd_keeps_momentum ? "sgd_momentum" : config.optimizer.name);
}

plan::Work planned_work(const Config& config, int64_t world) {
  const int64_t batch = config.train.batch_sequences;
  const int64_t unit = world * std::max<int64_t>(1, config.train.microbatch_sequences);
  if (batch % unit != 0)
    refuse("train.batch_sequences: got " + std::to_string(batch) + " for " + std::to_string(world) +
           " ranks, expected a multiple of " + std::to_string(unit) +
           " (ranks x train.microbatch_sequences). Set it to " + std::to_string((batch + unit - 1) / unit * unit) +
           ".");
  plan::Work work;
  work.sequence_length = config.data.sequence_length;
  work.microbatch_sequences = microbatch_sequences(config.train, world);
  work.microbatches = batch / world / work.microbatch_sequences;
  const Recomputation recomputation = parse_recomputation(config.train.recompute, config.train.recompute_every);
  work.recompute = recomputation.what;
  work.recompute_every = recomputation.every;
  work.block_inputs = recomputation.inputs;
  return work;
}

}  // namespace

plan::PlannedModel planned_model(const Config& config, const ModelChoice& choice) {
  check_base_format(config, choice);
  const Tuning tuning = choose_tuning(config.tune, choice, LoraBase::kPlanned);
  const models::Decoder outline = deferred([&] {
    models::Decoder whole(choice.config, at::TensorOptions().dtype(base_type(tuning, config.shard)));
    apply_tuning(tuning, whole, /*seed=*/0);
    return whole;
  });
  use_fp8(outline, config.shard);
  plan::PlannedModel model;
  model.name = config.model.preset.empty() ? choice.config.model_type : config.model.preset;
  model.decoder = choice.config;
  if (choice.config.tie_word_embeddings) model.head = plan::TiedHead::kYes;
  model.root.name = "root";
  const std::string blocks = "model.layers.";
  for (int64_t i = 0; i < choice.config.num_hidden_layers; ++i) {
    model.blocks.emplace_back().name = blocks + std::to_string(i);
  }
  const auto coded = models::coded_weights(outline);
  for (const auto& item : outline->named_parameters()) {
    const bool in_block = item.key().rfind(blocks, 0) == 0;
    plan::PlannedUnit& unit = in_block ? model.blocks.at(std::stoul(item.key().substr(blocks.size()))) : model.root;
    unit.parameters.push_back(planned_parameter(item.key(), item.value()));
    const bool as_fp8 = config.shard.fp8_gather && kernels::fp8_recipe_of(item.value());
    if (as_fp8) unit.parameters.back().travel = plan::Travel::kAsFp8;
    if (const auto codes = coded.find(item.key()); codes != coded.end()) {
      unit.parameters.back().coded = codes->second.out * codes->second.in;
      unit.parameters.back().compute = plan::ComputeType::kOwn;
    }
  }
  return model;
}

plan::Setup planned_setup(const Config& config, const RankCounts& ranks) {
  check_precision(config);
  const MeshConfig& mesh = config.mesh;
  const int64_t cut = mesh.pp * mesh.tp * mesh.cp;
  if (cut < 1 || ranks.world % cut != 0)
    refuse("mesh.pp x mesh.tp x mesh.cp: got " + std::to_string(mesh.pp) + " x " + std::to_string(mesh.tp) + " x " +
           std::to_string(mesh.cp) + " for " + std::to_string(ranks.world) +
           " ranks, expected a divisor of the number of ranks.");
  const int64_t groups = ranks.world / cut;  // of ranks with sequences of their own
  if (config.shard.replicas < 1 || groups % config.shard.replicas != 0)
    refuse("shard.replicas: got " + std::to_string(config.shard.replicas) + " for " + std::to_string(groups) +
           " ranks, expected a divisor of the number of ranks.");
  const ShardOptions options = shard_options(config.shard);
  plan::Setup setup;
  setup.replicas = config.shard.replicas;
  setup.shards = groups / setup.replicas * mesh.cp;
  setup.context = mesh.cp;
  setup.tensor = mesh.tp;
  setup.experts = mesh.ep;
  setup.pipeline = mesh.pp;
  if (mesh.pp > 1) {
    setup.order = plan::parse_order(mesh.schedule);
    setup.stages_per_rank = mesh.stages_per_rank;
  }
  setup.context_exchange = exchange_on(config.shard.device, mesh.cp_exchange);
  setup.strategy = options.strategy;
  if (options.reshard_after_forward) {
    const auto* whole = std::get_if<bool>(&*options.reshard_after_forward);
    if (whole != nullptr) setup.reshard_after_forward = *whole;
    if (whole == nullptr) setup.reshard_after_forward = int64_t{std::get<int>(*options.reshard_after_forward)};
  }
  setup.precision = plan::parse_planned_precision(stored_precision_name(config.shard));
  setup.granularity = root_layout(config.optimizer).granularity;
  setup.block = root_layout(config.optimizer).block;
  setup.sum_order = sum_order(config.train);
  setup.optimizer = optimizer_of(config);
  if (config.train.ema > 0) setup.averages = plan::Averages::kEma;
  setup.schedule = options.schedule;
  setup.node_size = std::min(ranks.per_node, ranks.world);
  const bool one_node = setup.node_size == ranks.world;
  setup.transport = config.shard.device == "cuda" ? plan::Transport::kNccl
                    : one_node                    ? plan::Transport::kSharedMemory
                                                  : plan::Transport::kTwoLevel;
  setup.copies = plan::GatheredCopies::kOnePerHost;
  if (options.whole_weights == WholeWeights::kCopied) setup.whole_shard = plan::WholeShard::kCopied;
  if (options.main_weights == MainWeights::kOnDisk) setup.state = plan::StatePlace::kDisk;
  if (options.main_weights == MainWeights::kOnHost) setup.state = plan::StatePlace::kHost;
  setup.work = planned_work(config, groups);
  return setup;
}

}  // namespace fsdp::train
