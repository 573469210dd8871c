#include "fsdp/optim/clip_grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/group/leaves.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "kernels/sum_squares.h"

namespace fsdp {
namespace {

// A sum of squares and the groups of ranks that hold the rest of it; none: this rank has all of it.
struct PartialSum {
  std::vector<std::shared_ptr<comm::Comm>> comms;
  double sum = 0;
};

// In the order in which the leaves name them, which is the same on every rank: all take part in the same sums, with or
// without a gradient.
std::vector<PartialSum> local_sums(const std::vector<at::Tensor>& leaves) {
  std::vector<PartialSum> sums;
  for (const at::Tensor& leaf : leaves) {
    const auto member = registry::find_leaf(leaf);
    FSDP_CHECK(
        !member || !member->group->updates_in_backward(), "[clip_grad_norm_] unit '", member->group->unit_name(),
        "' is updated in the backward (step_in_backward), so its gradients are gone. Clip by value in the model, or ",
        "call optimizer.step() after the backward.");
    const auto comms = member ? member->group->main_weight_comms() : std::vector<std::shared_ptr<comm::Comm>>();
    auto known = std::find_if(sums.begin(), sums.end(), [&](const PartialSum& item) { return item.comms == comms; });
    if (known == sums.end()) known = sums.insert(sums.end(), PartialSum{comms});
    if (leaf.grad().defined()) known->sum += kernels::sum_squares(leaf.grad());
  }
  return sums;
}

}  // namespace

at::Tensor clip_grad_norm_(const torch::nn::Module& module, double max_norm) {
  return clip_grad_norm_(leaves_of(module), max_norm);
}

GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm) {
  FSDP_CHECK(max_norm > 0, "[clip_grad_norm_] max_norm: got ", max_norm, ", expected a number above 0.");
  enter_library(leaves);
  const Backstage backstage;
  double total = 0;
  for (const auto& [comms, sum] : local_sums(leaves)) {
    const at::Tensor shared = at::full({1}, sum, at::kDouble);
    for (const auto& comm : comms) comm->all_reduce_small(shared, {"gradient norm", "", ""});
    total += shared.item<double>();
  }
  const auto norm = static_cast<float>(std::sqrt(total));
  return {norm, std::min(1.0F, static_cast<float>(max_norm) / (norm + 1e-6F))};
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& leaves, double max_norm) {
  const GradNorm found = grad_norm(leaves, max_norm);
  const Backstage backstage;
  if (found.factor < 1.0F) {
    for (const at::Tensor& leaf : leaves) {
      if (leaf.grad().defined()) leaf.grad().mul_(found.factor);
    }
  }
  return at::scalar_tensor(found.norm, at::kFloat);
}

}  // namespace fsdp
