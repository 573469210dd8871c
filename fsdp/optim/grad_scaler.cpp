#include "fsdp/optim/grad_scaler.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/connection.h"
#include "fsdp/group/group_owner.h"
#include "fsdp/group/leaves.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "fsdp/mesh/mesh.h"
#include "fsdp/optim/flat_optimizer.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/norm_listener.h"

namespace fsdp {
namespace {

using Tensors = std::vector<at::Tensor>;

const c10::TensorImpl* key_of(const at::Tensor& leaf) { return leaf.unsafeGetTensorImpl(); }

Tensors leaves_of(const torch::optim::Optimizer& optimizer) {
  Tensors leaves;
  for (const auto& group : optimizer.param_groups()) {
    leaves.insert(leaves.end(), group.params().begin(), group.params().end());
  }
  return leaves;
}

// The connection of the ranks that train these, or null where they are nobody's but this rank's.
std::shared_ptr<comm::Comm> world_of(const Tensors& leaves) {
  for (const at::Tensor& leaf : leaves) {
    const auto member = registry::find_leaf(leaf);
    const auto owner = member ? member->group->owner() : nullptr;
    if (owner && owner->world().size > 1) return owner->world().connection->world();
  }
  return nullptr;
}

// A norm of these gradients is one of all ranks' gradients.
bool all_over_the_world(const Tensors& leaves) {
  return std::all_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) {
    const auto member = registry::find_leaf(leaf);
    const auto owner = member ? member->group->owner() : nullptr;
    if (!owner) return false;
    const GroupLinks& links = member->group->links();
    return links.shard->size() * (links.replicate ? links.replicate->size() : 1) == owner->world().size;
  });
}

// Gradients times `factor`, in place. How many of them hold a number that is not finite is added to the result, which
// waits for a device.
bool multiply_and_check(const Tensors& leaves, double factor) {
  std::map<std::pair<c10::DeviceType, int>, std::map<at::ScalarType, Tensors>> gradients;
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor& gradient = leaf.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    gradients[{gradient.device().type(), gradient.device().index()}][gradient.scalar_type()].push_back(gradient);
  }
  bool found = false;
  for (auto& [place, by_dtype] : gradients) {
    const c10::Device device(place.first, static_cast<c10::DeviceIndex>(place.second));
    at::Tensor flag = at::zeros({1}, at::device(device).dtype(at::kFloat));
    const at::Tensor inverse = at::full({1}, factor, flag.options());
    for (auto& [dtype, list] : by_dtype) {
      if (dtype == at::kFloat) {
        at::_amp_foreach_non_finite_check_and_unscale_(list, flag, inverse);
        continue;
      }
      for (const at::Tensor& gradient : list) {  // not for every dtype on every device
        flag.add_(at::isfinite(gradient).all().logical_not().to(at::kFloat));
        gradient.mul_(factor);
      }
    }
    found = flag.item<float>() > 0 || found;
  }
  return found;
}

void refuse_updates_in_backward(const Tensors& leaves) {
  for (const at::Tensor& leaf : leaves) {
    const auto member = registry::find_leaf(leaf);
    FSDP_CHECK(!member || !member->group->updates_in_backward(), "[GradScaler] unit '", member->group->unit_name(),
               "' is updated in the backward (step_in_backward), before anybody knows whether a gradient overflowed. "
               "Call scaler.step(optimizer) after the backward instead.");
  }
}

}  // namespace

// What is known between two update()s.
struct GradScaler::Step : NormListener {
  // Gradients that were looked at together.
  struct Look {
    Tensors leaves;
    bool found_here = false;  // on this rank
    at::Tensor norm;          // of all ranks' gradients, if one was taken
    at::Tensor factor;        // what they lack; undefined: nothing
  };

  void hear(const Tensors& leaves, const at::Tensor& norm, double norm_type) override {
    if (norm_type > 2 && !std::isinf(norm_type)) return;  // high powers are not finite where gradients are
    std::set<const c10::TensorImpl*> covered;
    for (const at::Tensor& leaf : leaves) covered.insert(key_of(leaf));
    for (Look& look : looks) {
      const bool has_all = std::all_of(look.leaves.begin(), look.leaves.end(),
                                       [&](const at::Tensor& leaf) { return covered.count(key_of(leaf)) > 0; });
      if (has_all && all_over_the_world(look.leaves)) look.norm = norm;
    }
  }

  void add(Look look) {
    for (const at::Tensor& leaf : look.leaves) look_of[key_of(leaf)] = looks.size();
    looks.push_back(std::move(look));
  }

  // The looks at these leaves, or nothing if there was none. Throws if there was one at some of them only.
  std::set<size_t> looks_at(const Tensors& leaves) const {
    std::set<size_t> found;
    size_t missing = 0, with_gradient = 0;
    for (const at::Tensor& leaf : leaves) {
      if (!leaf.grad().defined()) continue;
      ++with_gradient;
      const auto known = look_of.find(key_of(leaf));
      known == look_of.end() ? static_cast<void>(++missing) : static_cast<void>(found.insert(known->second));
    }
    FSDP_CHECK(missing == 0 || found.empty(), "[GradScaler] step: got an optimizer of which ", with_gradient - missing,
               " of ", with_gradient, " gradients were unscaled, expected all or none. Unscale the others too.");
    return found;
  }

  void unscale(const Tensors& leaves) {
    enter_library(leaves);
    const Backstage backstage;
    Look look;
    look.leaves = leaves;
    look.found_here = multiply_and_check(leaves, 1 / state.scale);
    add(std::move(look));
  }

  // Whether a gradient of these is not finite on any rank.
  bool agree(const Tensors& leaves, const std::set<size_t>& at) const {
    const Backstage backstage;
    bool found = false, known_everywhere = true;
    for (const size_t i : at) {
      const Look& look = looks[i];
      known_everywhere = known_everywhere && look.norm.defined();
      found = found || (look.norm.defined() ? !std::isfinite(look.norm.item<double>()) : look.found_here);
    }
    const auto world = known_everywhere && !at.empty() ? nullptr : world_of(leaves);
    if (!world) return found;
    const at::Tensor count = at::full({1}, found ? 1 : 0, at::kInt);
    world->all_reduce_small(count, {"overflow of gradients", "", ""});
    return count.item<int>() > 0;
  }

  // `take` gets a factor that the gradients lack, or an undefined tensor. It is the program's: the observer must see
  // what optimizers of LibTorch write.
  template <class Take>
  ScaledStep step(const void* optimizer, const Tensors& leaves, const Take& take) {
    FSDP_CHECK(was_scaled,
               "[GradScaler] step: got no loss to scale since the last update(), expected "
               "scaler.scale(loss).backward() first.");
    FSDP_CHECK(stepped.count(optimizer) == 0,
               "[GradScaler] step: got the same optimizer twice since the last "
               "update(), expected scaler.update() between two steps.");
    refuse_updates_in_backward(leaves);
    std::set<size_t> at = looks_at(leaves);
    if (at.empty()) {
      unscale(leaves);
      at = {looks.size() - 1};
    }
    const bool overflowed = agree(leaves, at);
    stepped.insert(optimizer);
    found = found || overflowed;
    if (overflowed) return ScaledStep::kSkipped;
    at::Tensor factor;
    for (const size_t i : at) {
      FSDP_CHECK(
          !looks[i].factor.defined() || at.size() == 1,
          "[GradScaler] step: got an optimizer whose gradients have norms of several grad_norm() calls, expected "
          "one call with all its leaves.");
      factor = looks[i].factor;
    }
    take(factor);
    return ScaledStep::kTaken;
  }

  void check_norm(double max_norm) const {
    FSDP_CHECK(was_scaled,
               "[GradScaler] grad_norm: got no loss to scale since the last update(), expected "
               "scaler.scale(loss).backward() first.");
    FSDP_CHECK(max_norm > 0, "[GradScaler] grad_norm: max_norm: got ", max_norm, ", expected a number above 0.");
  }

  void begin_anew() {
    was_scaled = found = false;
    looks.clear();
    look_of.clear();
    stepped.clear();
  }

  GradScalerOptions options;
  GradScalerState state;
  bool was_scaled = false;
  bool found = false;
  std::vector<Look> looks;
  std::unordered_map<const c10::TensorImpl*, size_t> look_of;
  std::set<const void*> stepped;
};

GradScaler::GradScaler(const GradScalerOptions& options) : step_(std::make_shared<Step>()) {
  FSDP_CHECK(options.init_scale > 0 && std::isfinite(options.init_scale), "[GradScaler] init_scale: got ",
             options.init_scale, ", expected a number above 0.");
  FSDP_CHECK(options.growth_factor >= 1 && options.backoff_factor > 0 && options.backoff_factor < 1,
             "[GradScaler] growth_factor ", options.growth_factor, ", backoff_factor ", options.backoff_factor,
             ": expected at least 1, and a number between 0 and 1.");
  FSDP_CHECK(options.growth_interval >= 1, "[GradScaler] growth_interval: got ", options.growth_interval,
             ", expected at least 1.");
  step_->options = options;
  step_->state.scale = options.init_scale;
}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  FSDP_CHECK(loss.defined() && loss.is_floating_point(), "[GradScaler] scale: expected a floating-point loss.");
  step_->was_scaled = true;
  const bool is_narrow = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (is_narrow ? loss.to(at::kFloat) : loss) * step_->state.scale;
}

void GradScaler::expect_scaled() { step_->was_scaled = true; }

void GradScaler::unscale_(const torch::nn::Module& module) { unscale_(leaves_of(module)); }

void GradScaler::unscale_(const Tensors& leaves) {
  FSDP_CHECK(step_->was_scaled,
             "[GradScaler] unscale_: got no loss to scale since the last update(), expected "
             "scaler.scale(loss).backward() first.");
  for (const at::Tensor& leaf : leaves) {
    FSDP_CHECK(
        step_->look_of.count(key_of(leaf)) == 0,
        "[GradScaler] unscale_: got gradients that were unscaled, or whose grad_norm() was taken, since the last "
        "update(), expected each once. Call scaler.update(), or scaler.forget_step() after zero_grad().");
  }
  refuse_updates_in_backward(leaves);
  step_->unscale(leaves);
  add_norm_listener(step_);
}

GradNorm GradScaler::grad_norm(const Tensors& leaves, double max_norm, double norm_type) {
  step_->check_norm(max_norm);
  return grad_norm_from(fsdp::grad_norm(leaves, max_norm, norm_type).norm, leaves, max_norm);
}

GradNorm GradScaler::grad_norm_from(const at::Tensor& scaled_norm, const Tensors& leaves, double max_norm) {
  step_->check_norm(max_norm);
  const Backstage backstage;
  const double inverse = 1 / step_->state.scale;
  const at::Tensor norm = scaled_norm * inverse;
  constexpr double kTiny = 1e-6;  // as without a scale
  const at::Tensor factor = (max_norm / (norm + kTiny)).clamp_max(1).nan_to_num(/*nan=*/1) * inverse;
  // A look at the same leaves is replaced: nothing was written.
  std::vector<Step::Look> others = std::exchange(step_->looks, {});
  step_->look_of.clear();
  std::set<const c10::TensorImpl*> now;
  for (const at::Tensor& leaf : leaves) now.insert(key_of(leaf));
  for (Step::Look& look : others) {
    const bool again = std::any_of(look.leaves.begin(), look.leaves.end(),
                                   [&](const at::Tensor& leaf) { return now.count(key_of(leaf)) > 0; });
    FSDP_CHECK(!again || look.factor.defined(),
               "[GradScaler] grad_norm: got gradients that were unscaled, expected "
               "fsdp::grad_norm() for them.");
    if (!again) step_->add(std::move(look));
  }
  const bool known = all_over_the_world(leaves);
  const bool found_here = !known && !std::isfinite(scaled_norm.item<double>());
  step_->add({leaves, found_here, known ? scaled_norm : at::Tensor(), factor});
  return {norm, factor};
}

ScaledStep GradScaler::step(FlatOptimizer& optimizer) {
  const auto take = [&](const at::Tensor& factor) { factor.defined() ? optimizer.step(factor) : optimizer.step(); };
  return step_->step(&optimizer.flat_parameters(), optimizer.flat_parameters().leaves(), take);
}

ScaledStep GradScaler::step(torch::optim::Optimizer& optimizer) {
  const Tensors leaves = leaves_of(optimizer);
  return step_->step(&optimizer, leaves, [&](const at::Tensor& factor) {
    for (const at::Tensor& leaf : leaves) {
      if (factor.defined() && leaf.grad().defined()) leaf.grad().mul_(factor.to(leaf.grad().device()));
    }
    optimizer.step();
  });
}

void GradScaler::update() {
  Step& step = *step_;
  FSDP_CHECK(!step.stepped.empty(),
             "[GradScaler] update: got no step() since the last update(), expected scaler.step(optimizer) first. After "
             "gradients that were thrown away, call scaler.forget_step().");
  GradScalerState& state = step.state;
  if (step.found) {
    state = {state.scale * step.options.backoff_factor, 0};
  } else if (++state.steps_without_overflow >= step.options.growth_interval) {
    const double grown = state.scale * step.options.growth_factor;
    // Losses are fp32: a scale beyond that is none.
    state = {std::isfinite(static_cast<float>(grown)) ? grown : state.scale, 0};
  }
  step.begin_anew();
}

void GradScaler::forget_step() { step_->begin_anew(); }

double GradScaler::current_scale() const { return step_->state.scale; }
GradScalerState GradScaler::state() const { return step_->state; }

void GradScaler::load(const GradScalerState& state) {
  FSDP_CHECK(state.scale > 0 && std::isfinite(state.scale) && state.steps_without_overflow >= 0,
             "[GradScaler] load: got scale ", state.scale, " and ", state.steps_without_overflow,
             " steps, expected a number above 0 and a count.");
  step_->begin_anew();
  step_->state = state;
}

}  // namespace fsdp
