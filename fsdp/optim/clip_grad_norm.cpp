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
#include "kernels/flat/sum_squares.h"

namespace fsdp {
namespace {

// A sum of squares of gradients on one device, and the groups of ranks that hold the rest of it; none: this rank has
// all of it.
struct PartialSum {
  std::vector<std::shared_ptr<comm::Comm>> comms;
  at::Device device;
  double on_host = 0;                 // of gradients on the CPU
  std::vector<at::Tensor> on_device;  // of others: 0-dim fp64, to be added up

  void add(const at::Tensor& gradient) {
    if (device.is_cpu()) {
      on_host += kernels::sum_squares(gradient);
    } else {
      on_device.push_back(kernels::sum_squares_on_device(gradient));
    }
  }

  // [1], fp64.
  at::Tensor value() const {
    if (on_device.empty()) return at::full({1}, on_host, at::device(device).dtype(at::kDouble));
    return at::stack(on_device).sum(0, /*keepdim=*/true);
  }
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
    auto known = std::find_if(sums.begin(), sums.end(), [&](const PartialSum& item) {
      return item.comms == comms && item.device == leaf.device();
    });
    if (known == sums.end()) known = sums.insert(sums.end(), PartialSum{comms, leaf.device(), 0, {}});
    if (leaf.grad().defined()) known->add(leaf.grad());
  }
  return sums;
}

// Of `total`, [1] fp64. The arithmetic of both branches is the same.
GradNorm make_grad_norm(const at::Tensor& total, double max_norm) {
  const auto most = static_cast<float>(max_norm);
  if (total.is_cpu()) {
    const auto norm = static_cast<float>(std::sqrt(total.item<double>()));
    return {at::scalar_tensor(norm, at::kFloat), at::scalar_tensor(std::min(1.0F, most / (norm + 1e-6F)), at::kFloat)};
  }
  const at::Tensor norm = total.sqrt().to(at::kFloat).squeeze(0);
  const at::Tensor factor = at::scalar_tensor(most, at::kFloat) / (norm + 1e-6F);
  return {norm, factor.clamp_max(1).nan_to_num(/*nan=*/1)};
}

}  // namespace

at::Tensor clip_grad_norm_(const torch::nn::Module& module, double max_norm) {
  return clip_grad_norm_(leaves_of(module), max_norm);
}

GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm) {
  FSDP_CHECK(max_norm > 0, "[clip_grad_norm_] max_norm: got ", max_norm, ", expected a number above 0.");
  enter_library(leaves);
  const Backstage backstage;
  at::Tensor total;
  for (const PartialSum& sum : local_sums(leaves)) {
    const at::Tensor shared = sum.value();
    for (const auto& comm : sum.comms) comm->all_reduce_small(shared, {"gradient norm", "", ""});
    total = total.defined() ? total + shared.to(total.device()) : shared;
  }
  return make_grad_norm(total.defined() ? total : at::zeros({1}, at::kDouble), max_norm);
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& leaves, double max_norm) {
  const GradNorm found = grad_norm(leaves, max_norm);
  const Backstage backstage;
  const bool on_host = found.factor.is_cpu();  // else whether it clips is not known here, and it multiplies in any case
  const float factor = on_host ? found.factor.item<float>() : 0.0F;
  if (factor >= 1.0F) return found.norm;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.grad().defined()) continue;
    if (on_host) {
      leaf.grad().mul_(factor);
    } else {
      leaf.grad().mul_(found.factor.to(leaf.device()));
    }
  }
  return found.norm;
}

float GradNorm::value() const { return norm.item<float>(); }

}  // namespace fsdp
