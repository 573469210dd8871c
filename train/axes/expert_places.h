#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fsdp/fsdp.h"
#include "models/expert_ranks.h"

namespace fsdp::train {

// Expert parallelism for a decoder: experts over the ranks along "ep", which may be this rank alone, tokens of their
// own on all of them and on all other ranks, those along "tp" too. Bytes: see docs/experts.md.
class ExpertPlaces : public models::ExpertRanks {
 public:
  // COLLECTIVE over the axis.
  explicit ExpertPlaces(const Mesh& mesh)
      : world_(mesh.world()), ranks_(parallel::Ranks::along(mesh, "ep")), alike_(parallel::Ranks::along(mesh, "tp")) {}

  at::Tensor mix(const at::Tensor& x_NE, const kernels::Routing& routing, const models::ComputeExperts& compute,
                 const std::string& layer) override;
  at::Tensor add_up(const at::Tensor& numbers) override { return sum_over_ranks(world_, numbers); }
  at::Tensor add_up_alike(const at::Tensor& numbers) override { return alike_->sum(numbers, "scores of experts"); }

  const std::shared_ptr<parallel::Ranks>& ranks() const { return ranks_; }

 private:
  World world_;
  std::shared_ptr<parallel::Ranks> ranks_, alike_;
};

// A parameter of all experts of a layer.
bool is_of_experts(const std::string& name);

// Keeps this rank's experts, where `name` is of all of them and the mesh spreads them. The parameter may be deferred.
// Local.
void cut_experts(const std::string& name, const at::Tensor& parameter, const parallel::Ranks& ranks);

}  // namespace fsdp::train
