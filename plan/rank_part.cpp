#include "plan/rank_part.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "plan/axes.h"

namespace fsdp::plan {
namespace {

bool any_trains(std::span<const PlannedParameter> parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& each) { return each.trains; });
}

bool is_of_experts(const PlannedParameter& parameter) {
  return parameter.name.find(".mlp.experts.") != std::string::npos;
}

bool computes_behind_experts(const PlannedUnit& block) {
  return std::any_of(block.parameters.begin(), block.parameters.end(), [](const PlannedParameter& each) {
    return each.name.find(".mlp.shared_experts.") != std::string::npos;
  });
}

std::string name_of_experts(const PlannedUnit& block) { return block.name + ".mlp.experts"; }

// Takes a block's experts out of it, those of one of so many ranks; of a block without any a unit without parameters.
PlannedUnit take_experts(PlannedUnit& block, int64_t ranks) {
  PlannedUnit experts;
  experts.name = name_of_experts(block);
  experts.layer = block.layer;
  experts.of_experts = true;
  for (PlannedParameter& parameter : block.parameters) {
    if (!is_of_experts(parameter)) continue;
    experts.parameters.push_back(parameter);
    experts.parameters.back().shape.front() /= ranks;
  }
  std::erase_if(block.parameters, is_of_experts);
  return experts;
}

// Experts of each block become a unit within it; those of a block that is the root, within that.
void spread_experts(PlannedModel& model, int64_t ranks) {
  std::vector<PlannedUnit> blocks;
  for (PlannedUnit& block : model.blocks) {
    PlannedUnit experts = take_experts(block, ranks);
    blocks.push_back(std::move(block));
    if (experts.parameters.empty()) continue;
    experts.within = static_cast<int64_t>(blocks.size()) - 1;
    blocks.push_back(std::move(experts));
  }
  PlannedUnit of_root = take_experts(model.root, ranks);
  if (!of_root.parameters.empty()) blocks.push_back(std::move(of_root));
  model.blocks = std::move(blocks);
}

// An embedding that is the head too is a unit of its own in the stages that have it, and a block that is alone is the
// root.
void keep_stages(RankPart& part) {
  PlannedModel& model = part.model;
  std::vector<PlannedParameter>& root = model.root.parameters;
  const bool is_tied = model.head == TiedHead::kYes;
  std::vector<PlannedParameter> first(root.begin(), root.begin() + static_cast<int64_t>(model.num_first));
  std::vector<PlannedParameter> others(root.begin() + static_cast<int64_t>(model.num_first), root.end());
  std::vector<PlannedUnit> blocks;
  for (const PlannedStage& stage : part.stages)
    blocks.insert(blocks.end(), model.blocks.begin() + stage.layers.first, model.blocks.begin() + stage.layers.last);
  root.clear();
  if (part.has_start() && !is_tied) root = first;
  if (part.has_end()) root.insert(root.end(), others.begin(), others.end());
  model.num_first = part.has_start() && !is_tied ? first.size() : 0;
  model.head = TiedHead::kNo;
  const bool has_embedding = is_tied && (part.has_start() || part.has_end());
  if (has_embedding) blocks.insert(blocks.begin(), PlannedUnit{"model.embed_tokens", first});
  if (root.empty() && blocks.size() == 1) {
    model.root = blocks.front();
    blocks.clear();
  }
  model.blocks = std::move(blocks);
}

void add_layers(PlannedStage& stage, const PlannedModel& model, int root) {
  const auto& blocks = model.blocks;
  const auto add = [&](size_t i) {
    stage.visits.push_back({static_cast<int>(i), blocks[i].layer, blocks[i].trains()});
  };
  const auto add_root = [&] { stage.visits.push_back({root, model.root.layer, model.root.trains()}); };
  if (stage.layers.contains(model.root.layer)) add_root();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!stage.layers.contains(blocks[i].layer)) continue;
    add(i);
    if (!blocks[i].of_experts) continue;
    const bool is_within_root = blocks[i].within < 0;
    const PlannedUnit& around = is_within_root ? model.root : blocks[static_cast<size_t>(blocks[i].within)];
    if (!computes_behind_experts(around)) continue;
    is_within_root ? add_root() : add(static_cast<size_t>(blocks[i].within));
  }
}

void add_visits(PlannedStage& stage, const PlannedModel& model) {
  const int root = static_cast<int>(model.blocks.size());
  const std::span all(model.root.parameters);
  const auto first = all.first(std::min(model.num_first, all.size())), others = all.subspan(first.size());
  const bool has_embedding = !model.blocks.empty() && model.blocks.front().layer < 0;
  const bool embedding_trains = has_embedding && model.blocks.front().trains();
  if (stage.has_start && has_embedding) stage.visits.push_back({0, -1, embedding_trains, /*backward_reads=*/false});
  if (stage.has_start && !first.empty())
    stage.visits.push_back({root, -1, any_trains(first), /*backward_reads=*/false});
  add_layers(stage, model, root);
  const bool reads_root = !others.empty() || model.head == TiedHead::kYes;
  if (stage.has_end && reads_root) stage.visits.push_back({root, -1, any_trains(others)});
  if (stage.has_end && has_embedding) stage.visits.push_back({0, -1, embedding_trains});
}

}  // namespace

std::vector<models::BlockRange> stages_of(const PlannedModel& model, const Setup& setup) {
  if (setup.pipeline == 1 || !model.decoder) return {{0, static_cast<int64_t>(model.blocks.size())}};
  return models::cut_into_stages(*model.decoder, setup.work.sequence_length, setup.num_stages());
}

RankPart rank_part(const PlannedModel& model, const Setup& setup, int64_t place) {
  RankPart part;
  part.model = part_of_rank(model, setup.tensor);
  for (size_t i = 0; i < part.model.blocks.size(); ++i) part.model.blocks[i].layer = static_cast<int64_t>(i);
  const std::vector<models::BlockRange> all = stages_of(model, setup);
  const auto own = models::stages_of_rank(all, static_cast<int>(place), static_cast<int>(setup.pipeline));
  for (const models::BlockRange& layers : own)
    part.stages.push_back({layers, layers.first == all.front().first, layers.last == all.back().last, {}});
  if (setup.pipeline > 1) keep_stages(part);
  // Beside layers that are cut experts are whole, over more ranks than the rest of their block.
  if (setup.experts > 1 || setup.tensor > 1) spread_experts(part.model, setup.experts);
  for (PlannedStage& stage : part.stages) add_visits(stage, part.model);
  return part;
}

Setup setup_of_experts(const Setup& setup) {
  Setup experts = setup;
  experts.shards = setup.shards * setup.tensor / setup.experts;
  experts.tensor = setup.experts;
  experts.experts = 1;
  return experts;
}

Setup setup_of(const PlannedUnit& unit, const Setup& setup) {
  return unit.of_experts ? setup_of_experts(setup) : setup;
}

}  // namespace fsdp::plan
