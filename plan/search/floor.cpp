#include "plan/search/floor.h"

#include <algorithm>

namespace fsdp::plan {

std::string_view name(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kNodeLinks:
      return "links inside nodes";
    case Bound::kNetwork:
      return "the network between nodes";
  }
  return "";
}

double StepFloor::seconds() const { return std::max({compute, node_links, network}); }

Bound StepFloor::bound() const {
  if (network >= std::max(compute, node_links)) return Bound::kNetwork;
  return node_links > compute ? Bound::kNodeLinks : Bound::kCompute;
}

double recomputed_flops_per_token(const models::DecoderConfig& config, const Work& work) {
  using models::Recompute;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double layers = number(config.num_hidden_layers), every = number(work.recompute_every);
  const double chosen = number((config.num_hidden_layers + work.recompute_every - 1) / work.recompute_every);
  switch (work.recompute) {
    case Recompute::kNone:
    case Recompute::kElementwise:
      return 0;
    case Recompute::kGateUp:
      if (config.experts.count > 0) return 0;  // of layers with them nothing, of the few without them little
      return chosen * 4 * number(config.hidden_size) * number(config.intermediate_size);
    case Recompute::kBlock: {
      const double head = 6 * number(config.vocab_size) * number(config.hidden_size);
      const double blocks = models::flops_per_token(config, work.sequence_length) - head;
      return blocks / 3 * (every > 1 ? chosen / layers : 1);
    }
  }
  return 0;
}

StepFloor step_floor(const PlannedModel& model, const Report& report, const Machine& machine) {
  const Setup& setup = report.setup;
  const int64_t all_tokens = setup.work.microbatches * setup.work.microbatch_tokens();
  const auto tokens = static_cast<double>(all_tokens * setup.sequence_groups()) / static_cast<double>(setup.world());
  const double again = model.decoder ? recomputed_flops_per_token(*model.decoder, setup.work) : 0;
  const TrafficPlan& traffic = report.traffic;
  const double slimmed = std::max(0.0, traffic.pod_load - static_cast<double>(traffic.between_pods));
  StepFloor floor;
  floor.compute = tokens * (report.flops_per_token + again) / machine.flops_per_s;
  floor.node_links = static_cast<double>(traffic.inside_node) / machine.node_bytes_per_s;
  floor.network = (static_cast<double>(traffic.between_nodes) + slimmed) / machine.network_bytes_per_s;
  return floor;
}

}  // namespace fsdp::plan
