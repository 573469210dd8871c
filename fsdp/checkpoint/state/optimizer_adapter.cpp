#include "fsdp/checkpoint/state/optimizer_adapter.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/flat_optimizer.h"
#include "fsdp/optim/flat_parameters.h"

namespace fsdp::checkpoint {
namespace {

// One of this library.
class FlatAdapter : public OptimizerAdapter {
 public:
  explicit FlatAdapter(FlatOptimizer& optimizer) : optimizer_(optimizer), flat_(optimizer.flat_parameters()) {}

  std::vector<at::Tensor> leaves() const override { return flat_.leaves(); }

  LeafState get(const at::Tensor& leaf) override {
    optimizer_.check_trains("checkpoint");
    const int64_t steps = flat_.steps_of(leaf);
    return steps == 0 ? LeafState{} : LeafState{steps, states_of(leaf)};
  }

  LeafState make(const at::Tensor& leaf) override {
    optimizer_.check_trains("checkpoint");  // else going back to those would undo what is read
    return {0, states_of(leaf)};
  }
  void install() override { optimizer_.set_num_steps(0); }

  void set_steps(const at::Tensor& leaf, int64_t steps) override {
    flat_.set_steps_of(leaf, steps);
    optimizer_.set_num_steps(std::max(optimizer_.num_steps(), steps));
  }

  void forget(const at::Tensor& leaf) override {
    if (flat_.steps_of(leaf) == 0) return;
    for (const LeafTensor& state : states_of(leaf)) state.tensor.zero_();
    flat_.set_steps_of(leaf, 0);
  }

  std::vector<double> learning_rates() const override {
    std::vector<double> rates;
    for (size_t group = 0; group < optimizer_.num_groups(); ++group) rates.push_back(optimizer_.lr(group));
    return rates;
  }

  void set_learning_rates(const std::vector<double>& rates) override {
    for (size_t group = 0; group < rates.size(); ++group) optimizer_.set_lr(group, rates[group]);
  }

 private:
  std::vector<LeafTensor> states_of(const at::Tensor& leaf) const {
    std::vector<LeafTensor> result;
    for (const LeafStateTensor& state : flat_.states_of(leaf)) {
      result.push_back({state.name, state.tensor, state.block});
    }
    return result;
  }

  FlatOptimizer& optimizer_;
  FlatParameters& flat_;
};

using Fields = std::vector<std::pair<std::string, at::Tensor*>>;

Fields fields(torch::optim::AdamParamState& state) {
  return {
      {"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}, {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}
Fields fields(torch::optim::AdamWParamState& state) {
  return {
      {"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}, {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}
Fields fields(torch::optim::SGDParamState& state) { return {{"momentum_buffer", &state.momentum_buffer()}}; }
Fields fields(torch::optim::RMSpropParamState& state) {
  return {{"square_avg", &state.square_avg()},
          {"momentum_buffer", &state.momentum_buffer()},
          {"grad_avg", &state.grad_avg()}};
}
Fields fields(torch::optim::AdagradParamState& state) { return {{"sum", &state.sum()}}; }

// Which of them an optimizer with these options has.
template <class AdamOptions>
std::set<std::string> adam_tensors(const AdamOptions& options) {
  std::set<std::string> names{"exp_avg", "exp_avg_sq"};
  if (options.amsgrad()) names.insert("max_exp_avg_sq");
  return names;
}
std::set<std::string> tensors_for(const torch::optim::AdamOptions& options) { return adam_tensors(options); }
std::set<std::string> tensors_for(const torch::optim::AdamWOptions& options) { return adam_tensors(options); }
std::set<std::string> tensors_for(const torch::optim::SGDOptions& options) {
  return options.momentum() != 0 ? std::set<std::string>{"momentum_buffer"} : std::set<std::string>{};
}
std::set<std::string> tensors_for(const torch::optim::RMSpropOptions& options) {
  std::set<std::string> names{"square_avg"};
  if (options.momentum() > 0) names.insert("momentum_buffer");
  if (options.centered()) names.insert("grad_avg");
  return names;
}
std::set<std::string> tensors_for(const torch::optim::AdagradOptions&) { return {"sum"}; }

// One of LibTorch's.
template <class ParamState, class Options>
class TorchAdapter : public OptimizerAdapter {
 public:
  explicit TorchAdapter(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  std::vector<at::Tensor> leaves() const override {
    std::vector<at::Tensor> all;
    for (const auto& group : optimizer_.param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    return all;
  }

  LeafState get(const at::Tensor& leaf) override {
    const auto found = optimizer_.state().find(leaf.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? LeafState{} : view(static_cast<ParamState&>(*found->second));
  }

  LeafState make(const at::Tensor& leaf) override {
    auto state = std::make_unique<ParamState>();
    const std::set<std::string> wanted = tensors_for(static_cast<const Options&>(options_of(leaf)));
    for (const auto& [name, tensor] : fields(*state)) {
      if (wanted.count(name) > 0) *tensor = at::zeros_like(leaf.detach());
    }
    const LeafState result = view(*state);
    made_[leaf.unsafeGetTensorImpl()] = std::move(state);
    return result;
  }

  void install() override {
    for (auto& [leaf, state] : made_) optimizer_.state()[leaf] = std::move(state);
    made_.clear();
  }

  void set_steps(const at::Tensor& leaf, int64_t steps) override {
    if constexpr (requires(ParamState state) { state.step(); }) {
      static_cast<ParamState&>(*optimizer_.state().at(leaf.unsafeGetTensorImpl())).step(steps);
    }
  }

  void forget(const at::Tensor& leaf) override { optimizer_.state().erase(leaf.unsafeGetTensorImpl()); }
  bool has_state_from_start() const override { return std::is_same_v<Options, torch::optim::AdagradOptions>; }

  std::vector<double> learning_rates() const override {
    std::vector<double> rates;
    for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  }

  void set_learning_rates(const std::vector<double>& rates) override {
    for (size_t group = 0; group < rates.size(); ++group) {
      optimizer_.param_groups()[group].options().set_lr(rates[group]);
    }
  }

 private:
  const torch::optim::OptimizerOptions& options_of(const at::Tensor& leaf) const {
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& each : group.params()) {
        if (each.is_same(leaf)) return group.options();
      }
    }
    FSDP_ASSERT(false, "a leaf of another optimizer");
  }

  static LeafState view(ParamState& state) {
    LeafState result;
    if constexpr (requires { state.step(); }) result.steps = state.step();
    for (const auto& [name, tensor] : fields(state)) {
      if (tensor->defined()) result.tensors.push_back({name, *tensor});
    }
    return result;
  }

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<void*, std::unique_ptr<ParamState>> made_;
};

}  // namespace

std::unique_ptr<OptimizerAdapter> adapt(const OptimizerRef& optimizer) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  if (optimizer.flat != nullptr) return std::make_unique<FlatAdapter>(*optimizer.flat);
  torch::optim::Optimizer* torch = optimizer.torch;
  if (dynamic_cast<torch::optim::AdamW*>(torch) != nullptr)
    return std::make_unique<TorchAdapter<AdamWParamState, torch::optim::AdamWOptions>>(*torch);
  if (dynamic_cast<Adam*>(torch) != nullptr)
    return std::make_unique<TorchAdapter<AdamParamState, torch::optim::AdamOptions>>(*torch);
  if (dynamic_cast<torch::optim::SGD*>(torch) != nullptr)
    return std::make_unique<TorchAdapter<SGDParamState, torch::optim::SGDOptions>>(*torch);
  if (dynamic_cast<RMSprop*>(torch) != nullptr)
    return std::make_unique<TorchAdapter<RMSpropParamState, torch::optim::RMSpropOptions>>(*torch);
  if (dynamic_cast<Adagrad*>(torch) != nullptr)
    return std::make_unique<TorchAdapter<AdagradParamState, torch::optim::AdagradOptions>>(*torch);
  FSDP_THROW(kUsage, "[checkpoint] state.optimizer: got one of a type that is not known, expected Adam, AdamW, SGD, ",
             "RMSprop or Adagrad. Write a checkpoint::Stateful for it and put it into state.others.");
}

}  // namespace fsdp::checkpoint
