#include "plan/forecast/planned_work.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan/axes.h"
#include "plan/group.h"
#include "plan/rank_part.h"
#include "plan/time/decoder_work.h"

namespace fsdp::plan {
namespace {

time::Recompute recompute_of(models::Recompute recompute) {
  switch (recompute) {
    case models::Recompute::kNone:
      return time::Recompute::kNone;
    case models::Recompute::kElementwise:
      return time::Recompute::kElementwise;
    case models::Recompute::kGateUp:
      return time::Recompute::kGateUp;
    case models::Recompute::kBlock:
      return time::Recompute::kBlock;
  }
  return time::Recompute::kNone;
}

// Of the blocks, where only the first of every so many is computed again.
double recomputed_share(int64_t layers, int64_t every) {
  const int64_t recomputed = (layers + every - 1) / every;
  return static_cast<double>(recomputed) / static_cast<double>(std::max<int64_t>(layers, 1));
}

time::DecoderSetup decoder_setup(const models::DecoderConfig& config, const Setup& setup, int64_t microbatches) {
  time::DecoderSetup decoder;
  decoder.sequence_length = setup.work.sequence_length;
  decoder.sequences = setup.work.microbatch_sequences;
  decoder.microbatches = static_cast<int>(microbatches);
  decoder.recompute = recompute_of(setup.work.recompute);
  decoder.recomputed_share = recomputed_share(config.num_hidden_layers, setup.work.recompute_every);
  decoder.dtype = dtype_of_products(setup);
  // Axes beside the data's are trained on CPUs; what a device would do beside its calls is not known.
  if (setup.transport != Transport::kNccl) decoder.beside_calls = time::BesideCalls::kThisProject;
  decoder.strategy = setup.strategy;
  decoder.sequence_ranks = setup.context;
  if (takes_ring(config, setup)) decoder.sequence_exchange = time::SequenceExchange::kRing;
  decoder.tensor_ranks = setup.tensor;
  decoder.expert_ranks = setup.experts;
  decoder.busiest_experts = setup.work.busiest_experts;
  decoder.shard_ranks = static_cast<int>(setup.shards);
  decoder.replica_ranks = static_cast<int>(setup.replicas);
  decoder.ranks_per_node = static_cast<int>(setup.node_size);
  decoder.schedule = setup.schedule;
  return decoder;
}

// What the plan knows of a unit takes the place of what a decoder's work estimates.
void use_buffers(time::UnitWork& unit, const std::vector<GroupPlan>& groups) {
  unit.gather_bytes = unit.reduce_bytes = 0;
  for (const GroupPlan& group : groups) {
    if (group.gathers()) unit.gather_bytes += group.travelling();
    unit.reduce_bytes += group.reduce_shard * group.ranks.shard.size;
  }
}

// Units and passages of a rank's part, of those of the whole decoder.
void keep_part(time::StepWork& work, const RankPart& part) {
  std::map<int64_t, std::vector<time::Passage>> of_layers;
  for (size_t i = 1; i + 1 < work.passages.size(); ++i) of_layers[work.passages[i].unit].push_back(work.passages[i]);
  const time::Passage embedding = work.passages.front(), head = work.passages.back();
  work.units.clear();
  work.passages.clear();
  const int root = part.root();
  for (const PlannedUnit& block : part.model.blocks)
    work.units.push_back({block.name, block.within < 0 ? root : static_cast<int>(block.within)});
  work.units.push_back({part.model.root.name});
  std::vector<bool> visited(work.units.size(), false);
  for (size_t stage = 0; stage < part.stages.size(); ++stage) {
    const std::vector<Visit>& visits = part.stages[stage].visits;
    for (size_t i = 0; i < visits.size(); ++i) {
      const Visit& visit = visits[i];
      time::Passage passage;  // of what another visit counts already: nothing
      const bool is_last = i + 1 == visits.size();
      if (visit.layer >= 0) {
        const auto& passages = of_layers.at(visit.layer);
        const auto place = i > 0 && visits[i - 1].layer == visit.layer ? size_t{1} : size_t{0};
        const bool is_again = visited[static_cast<size_t>(visit.unit)];
        if (!is_again && place < passages.size()) passage = passages[place];
      } else if (!visit.backward_reads) {
        passage = embedding;
      } else if (is_last) {
        passage = head;
      }
      passage.unit = visit.unit;
      passage.stage = static_cast<int>(stage);
      visited[static_cast<size_t>(visit.unit)] = true;
      work.passages.push_back(passage);
    }
  }
  if (!visited.back()) work.passages.emplace_back().unit = root;
}

}  // namespace

time::Dtype dtype_of_products(const Setup& setup) {
  // Devices multiply fp16 as fast as bf16.
  const bool is_narrow = setup.precision.param == io::DType::BF16 || setup.precision.param == io::DType::F16;
  return is_narrow ? time::Dtype::kBf16 : time::Dtype::kFp32;
}

time::StepWork planned_work(const PlannedModel& model, const Setup& setup, const Network& network,
                            int64_t most_microbatches, int64_t place) {
  if (!model.decoder) throw std::invalid_argument("'" + model.name + "' is no decoder: what it computes is not known.");
  const int64_t microbatches = std::min(setup.work.microbatches, most_microbatches);
  const RankPart part = rank_part(model, setup, place);
  const models::DecoderConfig& config = *part.model.decoder;
  time::StepWork work = time::decoder_work(time::DecoderShape::of(config), decoder_setup(config, setup, microbatches));
  work.tensor_ranks = static_cast<int>(setup.tensor);
  work.context_ranks = static_cast<int>(setup.context);
  work.expert_ranks = static_cast<int>(setup.experts);
  if (setup.tensor > 1) work.tensor_bytes = tensor_call_bytes(*model.decoder, setup);
  if (setup.context > 1) {
    work.context_bytes = context_call_bytes(*model.decoder, setup);
    work.context_gradient_bytes = context_gradient_bytes(*model.decoder, setup);
  }
  if (setup.experts > 1) work.expert_bytes = expert_call_bytes(*model.decoder, setup);
  const bool spreads_experts = config.experts.count > 0 && (setup.experts > 1 || setup.tensor > 1);
  if (spreads_experts || setup.pipeline > 1) keep_part(work, part);
  work.holds_weights = setup.pipeline > 1;
  if (config.experts.count > 0 || config.latent.rank > 0 || setup.pipeline > 1) {
    const double tokens =
        static_cast<double>(setup.rank_tokens() * microbatches) / static_cast<double>(setup.pipeline * setup.tensor);
    work.model_flops = tokens * models::flops_per_token(*model.decoder, setup.work.sequence_length);
  }
  const std::vector<std::vector<GroupPlan>> units = plan_units(part.model, setup);
  work.optimizer_bytes = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool is_block = i < part.model.blocks.size();
    const PlannedUnit& unit = is_block ? part.model.blocks[i] : part.model.root;
    work.units.at(i).name = unit.name;
    work.units[i].of_experts = unit.of_experts;
    use_buffers(work.units[i], units[i]);
    for (const GroupPlan& group : units[i]) work.optimizer_bytes += static_cast<double>(group.optimizer_traffic);
  }
  work.reshard_after_forward = static_cast<int>(setup.forward_group());
  work.replica_reduce = setup.replica_reduce;
  work.nodes_per_pod = static_cast<int>(network.pod_nodes);
  work.slimming = network.slimming;
  return work;
}

time::Hardware with_rails(const time::Hardware& hardware, const Setup& setup, const Network& network) {
  time::Hardware result = hardware;
  const double share = static_cast<double>(network.rails) / static_cast<double>(setup.node_size);
  result.network.bytes_per_second *= std::min(1.0, share);
  return result;
}

time::Hardware usual_hardware(const Setup& setup) {
  return time::find_hardware(setup.transport == Transport::kNccl ? "h100-sxm" : "cpu-core");
}

std::optional<std::string> why_no_forecast(const PlannedModel& model, const Setup& setup, const Network& network,
                                           const time::Hardware& hardware) {
  try {
    const time::StepWork work = planned_work(model, setup, network, /*most_microbatches=*/1);
    check(work);
    check(hardware);
    hardware.flops(work.dtype);
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    const size_t tag = text.rfind('[', 0) == 0 ? text.find("] ") : std::string::npos;
    return tag == std::string::npos ? text : text.substr(tag + 2);
  }
  return std::nullopt;
}

}  // namespace fsdp::plan
