#include "train/axes/axis_checks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/config/axis_counts.h"
#include "train/base/device.h"
#include "train/base/format.h"
#include "train/config/sum_tree.h"

namespace fsdp::train {
namespace {

using Counts = std::vector<models::AxisCount>;

[[noreturn]] void refuse_axis(const std::string& message) { throw Error(ErrorCode::kUsage, "[mesh] " + message); }

// What a layer is cut into.
Counts counts_of(const Config& config, const models::DecoderConfig& model) {
  Counts counts = {{"attention heads (model.heads)", model.num_attention_heads},
                   {"heads of keys and values (model.kv_heads)", model.num_key_value_heads, /*may_repeat=*/true},
                   {"entries of the vocabulary (model.vocab_size)", model.vocab_size},
                   {"tokens of a sequence (data.sequence_length)", config.data.sequence_length}};
  if (models::has_dense_layer(model))
    counts.push_back({"inner features of the MLP (model.ffn_size)", model.intermediate_size});
  if (model.experts.shared_inner_size > 0)
    counts.push_back({"inner features of the shared experts", model.experts.shared_inner_size});
  return counts;
}

void check_counts(const std::string& key, int64_t parts, const Counts& counts) {
  for (const models::AxisCount& count : counts) {
    if (count.fits(parts)) continue;
    const int64_t below = count.number / parts * parts;
    refuse_axis(key + ": got " + std::to_string(parts) + " with " + std::to_string(count.number) + " " + count.what +
                ", expected " + (count.may_repeat ? "a divisor or " : "") + "a multiple of it: " +
                (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + parts) +
                ". With this model " + (key == "mesh.tp" ? "and these sequences " : "") + key + " may be " +
                models::legal_parts(counts, std::numeric_limits<int64_t>::max()) + ".");
  }
}

struct Refused {
  bool is_asked;
  std::string setting, instead;
};

void check_settings(const std::string& key, const std::vector<Refused>& refused) {
  for (const Refused& each : refused) {
    if (!each.is_asked) continue;
    refuse_axis(key + ": got it with " + each.setting + ", expected " + each.instead + ". Set that, or " + key +
                " to 1.");
  }
}

// Of stages and rings, whose ranks send each other messages.
void check_messages(const Config& config, const std::string& key, const std::string& instead) {
  if (has_messages(config.shard.device)) return;
  refuse_axis(key + ": got it with shard.device = \"" + config.shard.device +
              "\" over NCCL, which carries no messages between two ranks in this version, expected " + instead +
              ". Set that, or FSDP_DEVICE_TRANSPORT=host, with which ranks talk through the host.");
}

// That do not go with layers that are cut.
std::vector<Refused> refused_with_tp(const Config& config) {
  return {
      {config.optimizer.wants_whole_matrices(),
       "optimizer.name = \"" + config.optimizer.name + "\", which wants whole matrices",
       "adamw, schedule_free, lion or sgd"},
      {config.optimizer.name == "adamw_8bit", "optimizer.name = \"adamw_8bit\", which wants whole blocks of numbers",
       "adamw, schedule_free, lion or sgd"},
      {config.shard.precision == "fp8", "shard.precision = \"fp8\", whose scales are those of whole weights",
       "fp32, bf16 or fp16"},
      {config.train.recompute == "elementwise" || config.train.recompute == "gate_up",
       "train.recompute = \"" + config.train.recompute + "\", which computes a part of a layer again", "none or block"},
      {config.tune.method == "lora" && config.tune.lora_dropout > 0,
       "tune.lora_dropout = " + format_text("%g", config.tune.lora_dropout) + ", whose masks are of whole inputs", "0"},
      {config.tune.lora_kind == "dora", "tune.lora_kind = \"dora\", which takes norms of whole rows", "lora"}};
}

// That do not go with experts on different ranks.
std::vector<Refused> refused_with_ep(const Config& config) {
  return {{config.optimizer.wants_whole_matrices(),
           "optimizer.name = \"" + config.optimizer.name + "\", which wants whole matrices",
           "adamw, schedule_free, lion or sgd"},
          {config.optimizer.name == "adamw_8bit",
           "optimizer.name = \"adamw_8bit\", which wants whole blocks of numbers", "adamw, schedule_free, lion or sgd"},
          {config.tune.method == "lora", "tune.method = \"lora\"", "full"}};
}

// That do not go with experts, wherever they are.
void check_experts(const Config& config, const models::DecoderConfig& model) {
  const std::string what = "model_type " + model.model_type;
  const auto refuse_if = [&](bool is_asked, const std::string& setting, const std::string& instead) {
    if (is_asked) refuse_axis(what + ": got experts with " + setting + ", expected " + instead + ". Set that.");
  };
  refuse_if(config.shard.precision == "fp8", "shard.precision = \"fp8\"", "fp32, bf16 or fp16");
  refuse_if(config.train.cuda_graphs, "train.cuda_graphs, whose shapes are fixed", "false");
  refuse_if(config.train.world_invariant, "train.world_invariant, but sums of their tokens depend on the ranks",
            "false");
}

void check_expert_parallel(const Config& config, const models::DecoderConfig& model) {
  const int64_t parts = config.mesh.ep, experts = model.experts.count;
  if (experts == 0)
    refuse_axis("mesh.ep: got " + std::to_string(parts) + " with model_type " + model.model_type +
                ", which has no experts, expected 1.");
  check_settings("mesh.ep", refused_with_ep(config));
  check_counts("mesh.ep", parts, {{"experts of a layer (model.experts)", experts}});
}

// That do not go with layers in stages.
std::vector<Refused> refused_with_pp(const Config& config) {
  return {{config.shard.offload != "none", "shard.offload = \"" + config.shard.offload + "\"", "none"},
          {config.tune.lora_kind == "dora", "tune.lora_kind = \"dora\", whose files have norms of all stages' rows",
           "lora"}};
}

void check_stages(const Config& config, const models::DecoderConfig& model) {
  const MeshConfig& mesh = config.mesh;
  const int64_t layers = model.num_hidden_layers;
  if (mesh.pp * mesh.stages_per_rank <= layers) return;
  const std::string several =
      mesh.stages_per_rank == 1 ? "" : " x " + std::to_string(mesh.stages_per_rank) + " (mesh.stages_per_rank)";
  refuse_axis("mesh.pp: got " + std::to_string(mesh.pp) + several + " with " + std::to_string(layers) +
              " layers (model.layers), expected a layer for each stage: at most " + std::to_string(layers) +
              " stages.");
}

void check_schedule(const Config& config) {
  const MeshConfig& mesh = config.mesh;
  const bool is_interleaved = mesh.schedule == "interleaved";
  if (mesh.stages_per_rank > 1 && mesh.pp == 1)
    refuse_axis("mesh.stages_per_rank: got " + std::to_string(mesh.stages_per_rank) +
                " without stages, expected 1. Set that, or mesh.pp to 2 or more.");
  if (mesh.stages_per_rank > 1 && !is_interleaved)
    refuse_axis("mesh.stages_per_rank: got " + std::to_string(mesh.stages_per_rank) + " with mesh.schedule = \"" +
                mesh.schedule + "\", which has one stage on each rank. Set that to interleaved, or this to 1.");
  if (mesh.pp > 1 && mesh.stages_per_rank == 1 && is_interleaved)
    refuse_axis("mesh.schedule: got interleaved with mesh.stages_per_rank = 1, expected 2 or more. Set that.");
  if (mesh.pp > 1 && mesh.schedule == "zero_bubble" && config.train.recompute != "none")
    refuse_axis(
        "mesh.schedule: got zero_bubble with train.recompute = \"" + config.train.recompute +
        "\", which computes all gradients of a layer at once, expected none. Set that, or mesh.schedule to 1f1b.");
}

// Interleaved stages take turns of as many microbatches as there are ranks.
void check_microbatches(const Config& config, const RankPlace& place) {
  const int64_t rank_sequences = config.train.batch_sequences / place.num_data;
  const int64_t microbatches = rank_sequences / microbatch_sequences(config.train, place.num_data);
  if (config.mesh.schedule != "interleaved" || microbatches % config.mesh.pp == 0) return;
  refuse_axis("mesh.schedule: got interleaved with " + std::to_string(microbatches) +
              " microbatches a step, expected a multiple of mesh.pp = " + std::to_string(config.mesh.pp) +
              ". Each has " + "train.microbatch_sequences of the " + std::to_string(rank_sequences) +
              " sequences of a step that go through the stages: set one of the two, or mesh.schedule to 1f1b.");
}

// Each rank along "cp" has two equal chunks of a sequence, which those along "tp" divide.
void check_tokens(const Config& config) {
  RankPlace place;
  place.num_context = static_cast<int>(config.mesh.cp);
  place.num_tensor = static_cast<int>(config.mesh.tp);
  const int64_t unit = place.token_unit(), tokens = config.data.sequence_length, below = tokens / unit * unit;
  if (tokens % unit == 0) return;
  refuse_axis("mesh.cp: got " + std::to_string(config.mesh.cp) + " with " + std::to_string(tokens) +
              " tokens of a sequence (data.sequence_length), expected a multiple of " + std::to_string(unit) +
              ", two chunks for each rank along \"cp\"" + (config.mesh.tp > 1 ? ", divided by mesh.tp" : "") + ": " +
              (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + unit) + ".");
}

}  // namespace

void check_axes(const Config& config, const models::DecoderConfig& model, const RankPlace& place) {
  check_schedule(config);
  if (model.experts.count > 0) check_experts(config, model);
  if (config.mesh.pp > 1) {
    check_messages(config, "mesh.pp", "mesh.pp = 1");
    check_settings("mesh.pp", refused_with_pp(config));
    check_stages(config, model);
    check_microbatches(config, place);
  }
  if (config.mesh.tp > 1) {
    check_settings("mesh.tp", refused_with_tp(config));
    check_counts("mesh.tp", config.mesh.tp, counts_of(config, model));
  }
  if (config.mesh.cp > 1) {
    check_tokens(config);
    if (config.mesh.cp_exchange == "ring") check_messages(config, "mesh.cp_exchange = \"ring\"", "gather");
  } else if (config.mesh.cp_exchange != "auto") {
    refuse_axis("mesh.cp_exchange: got \"" + config.mesh.cp_exchange +
                "\" with mesh.cp = 1, expected \"auto\", or several ranks along it.");
  }
  if (config.mesh.ep > 1) check_expert_parallel(config, model);
}

}  // namespace fsdp::train
