#include "fsdp/pipeline/ties.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/connection.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "fsdp/pipeline/pipeline.h"

namespace fsdp::pipeline {
namespace {

using nlohmann::json;

// What owners of a weight have to have alike.
std::string part_text(const at::Tensor& leaf) {
  const LocalRange range = local_range(leaf);
  return c10::str("elements ", range.begin, " to ", range.end, " of ", at::IntArrayRef(logical_sizes(leaf)), " as ",
                  leaf.scalar_type(), leaf.requires_grad() ? "" : ", which do not train");
}

bool is_updated_in_backward(const at::Tensor& leaf) {
  const auto member = registry::find_leaf(leaf);
  return member && member->group->updates_in_backward();
}

std::map<std::string, at::Tensor> named_leaves(const std::vector<Stage>& stages) {
  std::map<std::string, at::Tensor> leaves;
  for (const Stage& stage : stages) {
    for (size_t i = 0; i < stage.names.size(); ++i) {
      const auto [other, is_new] = leaves.try_emplace(stage.names[i], stage.leaves[i]);
      FSDP_CHECK(is_new, "[pipeline] two stages of one rank have weights of their own called '", stage.names[i],
                 "', expected one. Put what shares a weight into one stage, or into stages of different ranks.");
    }
  }
  return leaves;
}

}  // namespace

Ties::Ties(const Mesh& mesh, comm::Comm& comm, const std::vector<Stage>& stages) {
  const Backstage backstage;
  const std::map<std::string, at::Tensor> mine = named_leaves(stages);
  std::map<std::string, std::string> parts;
  for (const auto& [name, leaf] : mine) parts[name] = part_text(leaf);
  std::map<std::string, std::map<int, std::string>> owners;  // of each name: by rank of the group, what it has
  int rank = 0;
  for (const std::string& text : comm.gather_texts(json(parts).dump(), {"find tied weights over pp", "pipeline", ""})) {
    const std::map<std::string, std::string> theirs = json::parse(text);
    for (const auto& [name, part] : theirs) owners[name][rank] = part;
    ++rank;
  }
  for (const auto& [name, holders] : owners) {
    if (holders.size() == 1) continue;
    const auto& [first, its_part] = *holders.begin();
    std::vector<int> ranks;
    for (const auto& [each, part] : holders) {
      const int global = comm.ranks()[static_cast<size_t>(each)];
      FSDP_CHECK(part == its_part, "[pipeline] the weight '", name, "' is of several stages: rank ",
                 comm.ranks()[static_cast<size_t>(first)], " has ", its_part, ", rank ", global, " has ", part,
                 ", expected the same. Make it a unit of its own in each stage: fully_shard() the module that has it "
                 "before the stage.");
      ranks.push_back(global);
    }
    const auto own = mine.find(name);
    if (own == mine.end() || !own->second.requires_grad()) continue;
    FSDP_CHECK(!is_updated_in_backward(own->second), "[pipeline] the weight '", name,
               "' is of several stages, and updated in the backward (step_in_backward), before its gradients are added "
               "up. Call optimizer.step() after the step.");
    ties_.push_back({name, own->second, mesh.world().connection->group(ranks)});
  }
}

void Ties::begin_step() {
  for (const Tie& tie : ties_) {
    if (!tie.is_first() && tie.leaf.grad().defined()) tie.leaf.grad().zero_();
  }
}

// In the order of the owners, so that all get the same bits.
void Ties::add_up() {
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  for (Tie& tie : ties_) {
    if (tie.leaf.numel() == 0) continue;
    if (!tie.leaf.grad().defined()) tie.leaf.mutable_grad() = at::zeros_like(tie.leaf.detach());
    const at::Tensor& gradient = tie.leaf.grad();
    const at::Tensor own = gradient.contiguous().view({-1});
    const at::Tensor all = at::empty({tie.owners->size() * own.numel()}, own.options());
    tie.owners->all_gather(all, own, {"add up gradients of a tied weight over pp", tie.name, ""}).wait();
    at::Tensor sum = all.narrow(0, 0, own.numel());
    for (int owner = 1; owner < tie.owners->size(); ++owner) sum.add_(all.narrow(0, owner * own.numel(), own.numel()));
    gradient.copy_(sum.view(gradient.sizes()));
  }
}

std::vector<at::Tensor> Ties::counted(const std::vector<at::Tensor>& leaves) const {
  std::vector<at::Tensor> counted;
  for (const at::Tensor& leaf : leaves) {
    const bool is_counted_elsewhere = std::any_of(
        ties_.begin(), ties_.end(), [&](const Tie& tie) { return !tie.is_first() && tie.leaf.is_same(leaf); });
    if (!is_counted_elsewhere) counted.push_back(leaf);
  }
  return counted;
}

}  // namespace fsdp::pipeline
