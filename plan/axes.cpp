#include "plan/axes.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "models/config/axis_calls.h"
#include "models/config/axis_counts.h"

namespace fsdp::plan {
namespace {

using models::DecoderConfig;
using models::Recompute;

[[noreturn]] void refuse_axis(const std::string& message) {
  throw io::Error(io::ErrorKind::kUsage, "[plan] " + message);
}

using Counts = std::vector<models::AxisCount>;

Counts counts_of(const DecoderConfig& config, const Setup& setup) {
  Counts counts = {{"attention heads", config.num_attention_heads},
                   {"heads of keys and values", config.num_key_value_heads, /*may_repeat=*/true},
                   {"entries of the vocabulary", config.vocab_size},
                   {"tokens of a sequence", setup.work.sequence_length}};
  if (models::has_dense_layer(config)) counts.push_back({"inner features of the MLP", config.intermediate_size});
  if (config.experts.shared_inner_size > 0)
    counts.push_back({"inner features of the shared experts", config.experts.shared_inner_size});
  return counts;
}

void check_counts(const std::string& axis, int64_t parts, const Counts& counts) {
  for (const models::AxisCount& count : counts) {
    if (!count.fits(parts))
      refuse_axis(axis + ": got " + std::to_string(parts) + " with " + std::to_string(count.number) + " " + count.what +
                  ", expected one of " + models::legal_parts(counts, kMostRanks) + ".");
  }
}

enum class CutDim { kNone, kRows, kColumns };

bool is_of(std::string_view name, std::string_view map) { return name.find(map) != std::string_view::npos; }

// As cut_dimension() of train/axes/axes.cpp: adapters are cut where their map is.
CutDim cut_of(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kByRows = {"q_proj.",   "k_proj.",       "v_proj.",
                                                              "q_b_proj.", "kv_b_proj.",    "gate_proj.",
                                                              "up_proj.",  "embed_tokens.", "lm_head."};
  for (const std::string_view map : kByRows) {
    if (is_of(name, map)) return is_of(name, ".lora_A.") ? CutDim::kNone : CutDim::kRows;
  }
  if (!is_of(name, "o_proj.") && !is_of(name, "down_proj.")) return CutDim::kNone;
  return name.ends_with(".bias") || is_of(name, ".lora_B.") ? CutDim::kNone : CutDim::kColumns;
}

// How many different parts of keys and values there are: where heads are fewer than ranks, neighbours have the same.
int64_t parts_of_keys(const DecoderConfig& config, int64_t tensor) {
  return std::min(config.num_key_value_heads, tensor);
}

void cut(PlannedUnit& unit, int64_t tensor, int64_t parts_of_keys) {
  for (PlannedParameter& parameter : unit.parameters) {
    const bool is_of_keys = is_of(parameter.name, "k_proj.") || is_of(parameter.name, "v_proj.");
    switch (cut_of(parameter.name)) {
      case CutDim::kNone:
        break;
      case CutDim::kRows:
        parameter.shape.front() /= is_of_keys ? parts_of_keys : tensor;
        break;
      case CutDim::kColumns:
        parameter.shape.back() /= tensor;
        parameter.run = parameter.shape.back();
        break;
    }
  }
}

// Forwards and backwards of blocks, and the forwards that backwards run once more. `counts`: of which layers.
template <class Counts>
int64_t passes_of_blocks(const RankPart& part, const Work& work, const Counts& counts) {
  int64_t passes = 0;
  for (const PlannedStage& stage : part.stages) {
    for (int64_t layer = stage.layers.first; layer < stage.layers.last; ++layer) {
      if (!counts(layer)) continue;
      const bool again = work.recompute == Recompute::kBlock && layer % work.recompute_every == 0;
      passes += again ? 3 : 2;
    }
  }
  return passes;
}
int64_t passes_of_blocks(const RankPart& part, const Work& work) {
  return passes_of_blocks(part, work, [](int64_t) { return true; });
}

// Gathers of activations over `tp`, and as many sums, in all passes of blocks.
int64_t tensor_calls_of_blocks(const RankPart& part, const Work& work, const DecoderConfig& config) {
  const int64_t cut = passes_of_blocks(part, work, [&](int64_t layer) { return has_cut_mlp(config, layer); });
  return cut * models::kTensorCallsOfBlock +
         (passes_of_blocks(part, work) - cut) * models::kTensorCallsOfBlockWithExperts;
}

void add_calls(CallLedger& ledger, Collective call, CollectiveKind kind, int64_t times, int64_t bytes) {
  call.kind = kind;
  ledger.add(call, bytes / call.group.size, call.group.received(bytes), times);
}

int64_t layers_of(const RankPart& part) {
  int64_t layers = 0;
  for (const PlannedStage& stage : part.stages) layers += stage.layers.last - stage.layers.first;
  return layers;
}

// Keys and values go around in each forward, and in a backward with their gradients behind them: that is a forward
// more.
void add_ring_calls(CallLedger& ledger, Collective call, const RankPart& part, const Setup& setup,
                    const DecoderConfig& whole) {
  const int64_t steps = setup.work.microbatches * (setup.context - 1);
  const int64_t block = context_call_bytes(whole, setup) / setup.context;
  const int64_t gradient = context_gradient_bytes(whole, setup) / setup.context;
  call.kind = CollectiveKind::kMessage;
  ledger.add(call, block, block, steps * passes_of_blocks(part, setup.work));
  ledger.add(call, gradient, gradient, steps * layers_of(part));
}

// All of them at once, and sums of their gradients.
void add_context_calls(CallLedger& ledger, const Collective& call, const RankPart& part, const Setup& setup,
                       const DecoderConfig& whole) {
  const Work& work = setup.work;
  const int64_t bytes = context_call_bytes(whole, setup);
  const int64_t scatters = work.microbatches * layers_of(part) * models::kContextCallsOfBlock;
  const int64_t all = work.microbatches * passes_of_blocks(part, work) * models::kContextCallsOfBlock;
  add_calls(ledger, call, CollectiveKind::kGather, all - scatters, bytes);
  add_calls(ledger, call, CollectiveKind::kReduceScatter, scatters, bytes);
}

void check_experts(const DecoderConfig& config, const Setup& setup) {
  const double busiest = setup.work.busiest_experts;
  if (!(busiest >= 1 && busiest <= static_cast<double>(setup.experts))) {
    std::ostringstream got;
    got << "busiest experts: got " << busiest << " times an equal share with ep " << setup.experts
        << ", expected a number from 1 to that.";
    refuse_axis(got.str());
  }
  if (config.experts.count == 0) {
    if (setup.experts == 1) return;
    refuse_axis("ep: got " + std::to_string(setup.experts) + " with model_type " + config.model_type +
                ", which has no experts, expected 1.");
  }
  if (setup.experts == 1) return;
  check_counts("ep", setup.experts, {{"experts of a layer", config.experts.count}});
  if (has_owners(setup.optimizer) || setup.optimizer == Optimizer::kAdamW8Bit)
    refuse_axis("ep: got it with optimizer " + std::string(name(setup.optimizer)) +
                ", which wants whole matrices or blocks, expected adamw, schedule_free, lion or sgd.");
}

void check_stages(const DecoderConfig& config, const Setup& setup) {
  if (setup.num_stages() > config.num_hidden_layers)
    refuse_axis(
        "pp: got " + std::to_string(setup.pipeline) +
        (setup.stages_per_rank > 1 ? " x " + std::to_string(setup.stages_per_rank) + " stages" : std::string()) +
        " with " + std::to_string(config.num_hidden_layers) + " layers, expected a layer for each stage: at most " +
        std::to_string(config.num_hidden_layers) + ".");
}

}  // namespace

void check_axes(const PlannedModel& model, const Setup& setup) {
  const bool is_cut = setup.tensor > 1 || setup.context > 1 || setup.experts > 1 || setup.pipeline > 1;
  if (!model.decoder) {
    if (is_cut) refuse_axis("pp, cp, tp and ep: got one of them with '" + model.name + "', expected a decoder.");
    return;
  }
  check_experts(*model.decoder, setup);
  check_stages(*model.decoder, setup);
  if (!is_cut) return;
  if (setup.context > 1) check_counts("cp", setup.context, {{"tokens of a sequence", setup.work.sequence_length / 2}});
  if (setup.tensor == 1) return;
  check_counts("tp", setup.tensor, counts_of(*model.decoder, setup));
  if (has_owners(setup.optimizer) || setup.optimizer == Optimizer::kAdamW8Bit)
    refuse_axis("tp: got it with optimizer " + std::string(name(setup.optimizer)) +
                ", which wants whole matrices or blocks, expected adamw, schedule_free, lion or sgd.");
  if (setup.work.recompute == Recompute::kElementwise || setup.work.recompute == Recompute::kGateUp)
    refuse_axis("tp: got it with recompute " + std::string(name(setup.work.recompute)) + ", expected none or block.");
}

bool has_cut_mlp(const DecoderConfig& config, int64_t layer) {
  return !config.has_experts(layer) || config.experts.shared_inner_size > 0;
}

DecoderConfig part_of_rank(const DecoderConfig& config, int64_t tensor) {
  DecoderConfig part = config;
  part.num_attention_heads /= tensor;
  part.num_key_value_heads /= parts_of_keys(config, tensor);
  part.intermediate_size /= tensor;
  part.experts.shared_inner_size /= tensor;
  part.vocab_size /= tensor;
  return part;
}

PlannedModel part_of_rank(const PlannedModel& model, int64_t tensor) {
  PlannedModel part = model;
  if (tensor == 1) return part;
  const int64_t of_keys = part.decoder ? parts_of_keys(*part.decoder, tensor) : tensor;
  for (PlannedUnit& block : part.blocks) cut(block, tensor, of_keys);
  cut(part.root, tensor, of_keys);
  if (part.decoder) part.decoder = part_of_rank(*part.decoder, tensor);
  return part;
}

int64_t tensor_call_bytes(const DecoderConfig& whole, const Setup& setup) {
  return setup.rank_tokens() * whole.hidden_size * setup.activation_bytes();
}

int64_t context_call_bytes(const DecoderConfig& whole, const Setup& setup) {
  const int64_t keys = whole.num_key_value_heads / parts_of_keys(whole, setup.tensor) * whole.head_dim;
  return setup.work.microbatch_tokens() * 2 * keys * setup.activation_bytes();
}

int64_t context_gradient_bytes(const DecoderConfig& whole, const Setup& setup) {
  return context_call_bytes(whole, setup) / setup.activation_bytes() * std::max<int64_t>(4, setup.activation_bytes());
}

bool takes_ring(const DecoderConfig& part, const Setup& setup) {
  const int64_t keys = part.num_key_value_heads * part.head_dim;
  const parallel::ContextShape shape{setup.work.microbatch_sequences, setup.work.sequence_length / setup.context,
                                     setup.rank_tokens() * keys, setup.activation_bytes(), setup.context};
  return setup.context > 1 && choose_exchange(setup.context_exchange, shape, parallel::RowsHold::kDocuments) ==
                                  parallel::ContextExchange::kRing;
}

int64_t expert_call_bytes(const DecoderConfig& whole, const Setup& setup) {
  return setup.rank_tokens() / setup.tensor * whole.experts.per_token * whole.hidden_size * setup.activation_bytes();
}

int64_t stage_message_bytes(const DecoderConfig& whole, const Setup& setup) {
  return setup.rank_tokens() / setup.tensor * whole.hidden_size * setup.activation_bytes();
}

void add_axis_calls(const PlannedModel& whole, const RankPart& part, const Setup& setup, CallLedger& calls) {
  if (!whole.decoder) return;
  const DecoderConfig& config = *whole.decoder;
  const Work& work = setup.work;
  Collective call{};
  call.load = CollectiveLoad::kActivations;
  if (setup.tensor > 1) {
    call.axis = CollectiveAxis::kTensor;
    call.group = rank_group(setup.tensor, setup.experts, setup.node_size);
    const int64_t of_root = 2 * ((part.has_start() ? models::kTensorCallsOfEmbedding : 0) +
                                 (part.has_end() ? models::kTensorCallsOfHead : 0));
    const int64_t times = tensor_calls_of_blocks(part, work, config) + of_root;
    const int64_t bytes = tensor_call_bytes(config, setup);
    for (const CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kReduceScatter})
      add_calls(calls, call, kind, work.microbatches * times / 2, bytes);
  }
  if (setup.context > 1) {
    call.axis = CollectiveAxis::kContext;
    call.group = rank_group(setup.context, setup.tensor * setup.experts, setup.node_size);
    const bool is_ring = takes_ring(part_of_rank(config, setup.tensor), setup);
    is_ring ? add_ring_calls(calls, call, part, setup, config) : add_context_calls(calls, call, part, setup, config);
  }
  if (setup.experts > 1) {
    call.axis = CollectiveAxis::kExperts;
    call.group = rank_group(setup.experts, 1, setup.node_size);
    const int64_t passes = passes_of_blocks(part, work, [&](int64_t layer) { return config.has_experts(layer); });
    const int64_t bytes = expert_call_bytes(config, setup);
    call.kind = CollectiveKind::kExchange;
    calls.add(call, bytes, call.group.received(bytes), work.microbatches * passes * models::kExpertCallsOfBlock);
  }
  if (setup.pipeline > 1) {
    call.axis = CollectiveAxis::kStages;
    call.kind = CollectiveKind::kMessage;
    call.group = rank_group(2, setup.stage_ranks(), setup.node_size);
    int64_t borders = 0;
    for (const PlannedStage& stage : part.stages) borders += (stage.has_start ? 0 : 1) + (stage.has_end ? 0 : 1);
    const int64_t bytes = stage_message_bytes(config, setup);
    calls.add(call, bytes, bytes, work.microbatches * borders);
  }
}

}  // namespace fsdp::plan
