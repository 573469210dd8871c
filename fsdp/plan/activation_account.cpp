#include "fsdp/plan/activation_account.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/plan/fake_pass.h"

namespace fsdp::plan {
namespace {

// The library takes a gradient as it appears; its bytes are those of gradients on their way.
class ForgetGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override { parameter.mutable_grad().reset(); }
};

class GradientsForgotten {
 public:
  explicit GradientsForgotten(const std::vector<ModuleUnits::Parameter>& parameters) : parameters_(parameters) {
    for (const ModuleUnits::Parameter& each : parameters_) {
      FSDP_CHECK(torch::autograd::impl::post_acc_grad_hooks(each.tensor) == nullptr,
                 "[inspect] a parameter has a hook on its gradient already. Inspect the model before.");
    }
    for (const ModuleUnits::Parameter& each : parameters_) {
      torch::autograd::impl::set_post_acc_grad_hooks(each.tensor, std::make_unique<ForgetGradient>());
    }
  }
  ~GradientsForgotten() {
    for (const ModuleUnits::Parameter& each : parameters_)
      torch::autograd::impl::set_post_acc_grad_hooks(each.tensor, nullptr);
  }
  GradientsForgotten(const GradientsForgotten&) = delete;
  GradientsForgotten& operator=(const GradientsForgotten&) = delete;

 private:
  const std::vector<ModuleUnits::Parameter>& parameters_;
};

// A stretch of a pass in which the program is in one unit.
struct Stretch {
  size_t unit;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t peak = 0;
};

class Account {
 public:
  Account(torch::nn::Module& module, const ModuleUnits& units) : units_(units), root_(units.model.blocks.size()) {
    std::unordered_map<const c10::TensorImpl*, const ModuleUnits::Parameter*> planned;
    for (const ModuleUnits::Parameter& each : units.parameters)
      planned.emplace(each.tensor.unsafeGetTensorImpl(), &each);
    std::unordered_set<const c10::TensorImpl*> seen;
    const auto add = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
      const auto found = planned.find(tensor.unsafeGetTensorImpl());
      const bool is_planned = found != planned.end();
      state_.push_back({tensor, is_planned ? found->second->type : tensor.scalar_type()});
      unit_of_state_.push_back(is_planned ? found->second->unit : kNoUnit);
    };
    for (const at::Tensor& tensor : module.parameters()) add(tensor);
    for (const at::Tensor& tensor : module.buffers()) add(tensor);
  }

  Activations run(const std::function<at::Tensor()>& forward) {
    FakePass pass(state_, [this](size_t index) { enter(unit_of_state_[index]); });
    const GradientsForgotten forgotten(units_.parameters);
    pass_ = &pass;
    begin();
    at::Tensor loss = forward();
    end();
    std::swap(forward_, stretches_);
    if (loss.defined() && loss.requires_grad()) {
      begin();
      loss.backward();
      end();
    }
    loss.reset();
    return activations();
  }

 private:
  static constexpr size_t kNoUnit = static_cast<size_t>(-1);

  void begin() {
    pass_->take_peak();
    stretches_.push_back({root_, pass_->live_bytes()});
  }

  void end() {
    stretches_.back().end = pass_->live_bytes();
    stretches_.back().peak = pass_->take_peak();
  }

  void enter(size_t unit) {
    if (unit == kNoUnit || unit == stretches_.back().unit) return;
    end();
    stretches_.push_back({unit, stretches_.back().end});
  }

  Activations activations() const {
    Activations result;
    result.kept.assign(root_, 0);
    result.working.assign(root_, 0);
    int64_t forward_peak = 0;
    for (const Stretch& stretch : forward_) {
      (stretch.unit == root_ ? result.outer_kept : result.kept[stretch.unit]) += stretch.end - stretch.begin;
      forward_peak = std::max(forward_peak, stretch.peak);
    }
    const int64_t all = forward_.back().end;
    // The first of the backward is the root's; where the head is a unit, it is empty.
    if (!stretches_.empty()) forward_peak = std::max(forward_peak, stretches_.front().peak);
    result.loss_working = std::max<int64_t>(0, forward_peak - all);
    int64_t kept = 0;
    for (size_t unit = 0; unit < root_; ++unit) {
      kept += result.kept[unit];
      for (const Stretch& stretch : stretches_) {
        if (stretch.unit == unit) result.working[unit] = std::max(result.working[unit], stretch.peak - kept);
      }
    }
    return result;
  }

  const ModuleUnits& units_;
  size_t root_;
  std::vector<FakePass::State> state_;
  std::vector<size_t> unit_of_state_;
  FakePass* pass_ = nullptr;
  std::vector<Stretch> forward_, stretches_;
};

}  // namespace

Activations account_for_activations(torch::nn::Module& module, const ModuleUnits& units,
                                    const std::function<at::Tensor()>& forward) {
  return Account(module, units).run(forward);
}

}  // namespace fsdp::plan
