#include <algorithm>
#include <array>
#include <cstdio>

#include "fsdp/base/units.h"
#include "plan/report.h"

namespace fsdp::plan {
namespace {

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string right(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string decimal(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// "2", or "2, 6": those of the ranks at a place along `pp`.
std::string numbers_of_stages(const Report& report, int64_t place) {
  std::string text = std::to_string(place);
  for (int64_t stage = place + report.setup.pipeline; stage < report.setup.num_stages(); stage += report.setup.pipeline)
    text += ", " + std::to_string(stage);
  return text;
}

// "0 - 3, 21 - 25".
std::string layers_text(const StagePlan& stage) {
  std::string text;
  for (const models::BlockRange& range : stage.layers)
    text += (text.empty() ? "" : ", ") + std::to_string(range.first) + " - " + std::to_string(range.last - 1);
  return text;
}

std::string stages_table(const Report& report) {
  const auto count = static_cast<int64_t>(report.stages.size());
  size_t of_numbers = 4, of_layers = 20;
  for (int64_t place = 0; place < count; ++place) {
    of_numbers = std::max(of_numbers, numbers_of_stages(report, place).size());
    of_layers = std::max(of_layers, layers_text(report.stages[static_cast<size_t>(place)]).size());
  }
  std::string text = padded("stages", of_numbers + 2) + right("layers", of_layers + 4) + right("parameters", 14) +
                     right("at rest", 14) + right("at most", 14) + "\n";
  for (int64_t place = 0; place < count; ++place) {
    const StagePlan& stage = report.stages[static_cast<size_t>(place)];
    text += "  " + padded(numbers_of_stages(report, place), of_numbers) + right(layers_text(stage), of_layers + 4) +
            right(format_count(stage.parameters), 14) + right(format_bytes(stage.at_rest), 14) +
            right(format_bytes(stage.peak), 14) + (place == report.stage ? "  what follows is about this one" : "") +
            "\n";
  }
  return text + "\n";
}

std::string memory_table(const Report& report) {
  const MemoryPlan& memory = report.memory;
  std::string text = report.stages.size() > 1
                         ? "memory of a rank of stage " + numbers_of_stages(report, report.stage) + "\n"
                         : "memory of a rank\n";
  for (size_t i = 0; i < kNumParts; ++i) {
    const auto part = static_cast<Part>(i);
    if (memory[part] == 0) continue;
    text += "  " + padded(std::string(name(part)), 24) + right(format_bytes(memory[part]), 12) + "  " +
            std::string(meaning(part)) + "\n";
  }
  text += "  " + padded("at most", 24) + right(format_bytes(memory.total()), 12) + "  in the " + memory.where +
          "; at rest " + format_bytes(memory.at_rest()) + "\n";
  if (memory.all_elsewhere() > 0) {
    text += "  " + padded(std::string(name(report.setup.state)), 24) + right(format_bytes(memory.all_elsewhere()), 12) +
            "  main weights, gradients and optimizer, beside that\n";
  }
  text += "  the largest block: weights " + format_bytes(memory.largest_gathered_block) + " gathered, gradients " +
          format_bytes(memory.largest_gradient_block) + "; padding " + decimal(report.traffic.padding_percent, 4) +
          " %\n";
  return text;
}

std::string traffic_table(const Report& report) {
  const TrafficPlan& traffic = report.traffic;
  std::string text = "a rank receives in a step" + right("calls", 23) + right("per rank and call", 24) +
                     right("in the node", 14) + right("other nodes", 14) + right("other pods", 14) + "\n";
  for (const TrafficLine& line : traffic.lines) {
    const Collective& call = line.call;
    const std::string sizes = call.smallest_shard == call.largest_shard
                                  ? format_bytes(call.largest_shard)
                                  : format_bytes(call.smallest_shard) + " - " + format_bytes(call.largest_shard);
    text += "  " + padded(describe(call), 40) + right(std::to_string(call.calls), 6) + right(sizes, 24) +
            right(format_bytes(line.inside_node), 14) + right(format_bytes(line.between_nodes), 14) +
            right(format_bytes(line.between_pods), 14) + "\n";
  }
  text += "  " + padded("all", 70) + right(format_bytes(traffic.inside_node), 14) +
          right(format_bytes(traffic.between_nodes), 14) + right(format_bytes(traffic.between_pods), 14) + "\n";
  if (traffic.between_nodes > 0) text += "  each rail of a node receives " + format_bytes(traffic.per_rail) + "\n";
  if (traffic.pod_load > 0)
    text += "  over the slimmed upper level that is as much as " +
            format_bytes(static_cast<int64_t>(traffic.pod_load)) + " per rank on a full link\n";
  for (const std::string& warning : traffic.warnings) text += "  note: " + warning + "\n";
  return text;
}

}  // namespace

std::string to_text(const Report& report) {
  std::string text = report.model + ": " + format_count(report.parameters) + " parameters" +
                     (report.active_parameters > 0 && report.active_parameters < report.parameters
                          ? ", " + format_count(report.active_parameters) + " for a token,"
                          : std::string()) +
                     " in " + std::to_string(report.units) + " units; " + describe(report.setup) + "\n";
  text += "a step: " + format_count(report.setup.tokens_per_step()) + " tokens";
  if (report.flops_per_token > 0) {
    text += ", " +
            decimal(report.flops_per_token * static_cast<double>(report.setup.tokens_per_step()) /
                        static_cast<double>(report.setup.world()) / 1e12,
                    1) +
            " TFLOP per rank";
  }
  return text + "\n\n" + (report.stages.size() > 1 ? stages_table(report) : std::string()) + memory_table(report) +
         "\n" + traffic_table(report);
}

}  // namespace fsdp::plan
