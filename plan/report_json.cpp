#include "plan/report.h"

namespace fsdp::plan {
namespace {

using nlohmann::json;

// "main weight" -> "main_weight".
std::string key_of(Part part) {
  std::string key(name(part));
  for (char& c : key) c = c == ' ' ? '_' : c;
  return key;
}

json setup_json(const Setup& setup) {
  const Work& work = setup.work;
  json text = {{"replicas", setup.replicas},
               {"shards", setup.shards},
               {"tp", setup.tensor},
               {"cp", setup.context},
               {"ep", setup.experts},
               {"pp", setup.pipeline},
               {"pipeline_schedule", std::string(name(setup.order))},
               {"stages_per_rank", setup.stages_per_rank},
               {"cp_exchange", std::string(name(setup.context_exchange))},
               {"strategy", std::string(fsdp::name(setup.strategy))},
               {"precision", name(setup.precision)},
               {"optimizer", std::string(name(setup.optimizer))},
               {"forward_group", setup.forward_group()},
               {"schedule", describe(setup.schedule)},
               {"ranks_per_node", setup.node_size},
               {"microbatches", work.microbatches},
               {"microbatch_sequences", work.microbatch_sequences},
               {"sequence_length", work.sequence_length},
               {"recompute", std::string(name(work.recompute))},
               {"recompute_every", work.recompute_every},
               {"tokens_per_step", setup.tokens_per_step()}};
  if (setup.averages == Averages::kEma) text["averages"] = "ema";
  return text;
}

json memory_json(const Report& report) {
  const MemoryPlan& memory = report.memory;
  json parts = json::object();
  for (size_t i = 0; i < kNumParts; ++i) parts[key_of(static_cast<Part>(i))] = memory.bytes[i];
  return {{"parts", parts},
          {"at_rest", memory.at_rest()},
          {"peak", memory.total()},
          {"peak_in", memory.where},
          {"padding", memory.padding},
          {"on_disk", report.setup.state == StatePlace::kDisk ? memory.all_elsewhere() : 0},
          {"on_host", report.setup.state == StatePlace::kHost ? memory.all_elsewhere() : 0},
          {"buffers_held", report.step.held_bytes},
          {"largest_gathered_block", memory.largest_gathered_block},
          {"largest_gradient_block", memory.largest_gradient_block},
          {"peak_unsharded", report.step.peak_unsharded_bytes},
          {"peak_reduce", report.step.peak_reduce_bytes}};
}

// [first, last] of each stage.
json layers_json(const StagePlan& stage) {
  json ranges = json::array();
  for (const models::BlockRange& layers : stage.layers) ranges.push_back({layers.first, layers.last - 1});
  return ranges;
}

json stages_json(const Report& report) {
  json stages = json::array();
  for (const StagePlan& stage : report.stages)
    stages.push_back({{"layers", layers_json(stage)},
                      {"parameters", stage.parameters},
                      {"at_rest", stage.at_rest},
                      {"peak", stage.peak}});
  return stages;
}

json traffic_json(const Report& report) {
  const TrafficPlan& traffic = report.traffic;
  json lines = json::array();
  for (const TrafficLine& line : traffic.lines) {
    lines.push_back({{"what", describe(line.call)},
                     {"ranks", line.call.group.size},
                     {"calls", line.call.calls},
                     {"received", line.call.received_bytes},
                     {"smallest_shard", line.call.smallest_shard},
                     {"largest_shard", line.call.largest_shard},
                     {"inside_node", line.inside_node},
                     {"between_nodes", line.between_nodes},
                     {"between_pods", line.between_pods}});
  }
  return {{"lines", lines},
          {"gathers", report.step.calls.gathers},
          {"reduces", report.step.calls.reduces},
          {"gather_bytes", report.step.calls.gather_bytes},
          {"reduce_bytes", report.step.calls.reduce_bytes},
          {"inside_node", traffic.inside_node},
          {"between_nodes", traffic.between_nodes},
          {"between_pods", traffic.between_pods},
          {"per_rail", traffic.per_rail},
          {"pod_load", traffic.pod_load},
          {"alignment", traffic.alignment},
          {"padding_percent", traffic.padding_percent},
          {"warnings", traffic.warnings}};
}

}  // namespace

json to_json(const Report& report) {
  return {{"model", report.model},
          {"parameters", report.parameters},
          {"active_parameters", report.active_parameters},
          {"units", report.units},
          {"stages", stages_json(report)},
          {"stage", report.stage},
          {"flops_per_token", report.flops_per_token},
          {"checkpoint_bytes", report.checkpoint_bytes},
          {"setup", setup_json(report.setup)},
          {"memory", memory_json(report)},
          {"traffic", traffic_json(report)}};
}

}  // namespace fsdp::plan
