// The gated MLP of a block.
// Shape suffixes: B rows, T tokens, E hidden, I intermediate.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/across_ranks.h"
#include "models/linear.h"

namespace fsdp::models {

// down(silu(gate(x)) * up(x)).
class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(int64_t hidden, int64_t inner, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE) { return project_down(activate(project(x_BTE))); }
  // gate and up, [B, T, I].
  std::vector<at::Tensor> project(const at::Tensor& x_BTE) {
    const at::Tensor& all_BTE = across_ ? across_->enter_layer(x_BTE, name_) : x_BTE;
    return models::project(all_BTE, projections_, {gate_proj_, up_proj_});
  }
  static at::Tensor activate(const std::vector<at::Tensor>& gate_and_up);
  at::Tensor project_down(const at::Tensor& product_BTI);

  void set_projections(Projections projections) { projections_ = projections; }
  bool can_fuse_projections() const { return lie_side_by_side({gate_proj_, up_proj_}); }
  // The maps are cut over ranks: this rank has some of the I. `name` is told in errors.
  void set_across(std::shared_ptr<AcrossRanks> across, const std::string& name);

 private:
  std::shared_ptr<AcrossRanks> across_;
  std::string name_;
  Projections projections_ = Projections::kSeparate;
  Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(GatedMlp);

}  // namespace fsdp::models
