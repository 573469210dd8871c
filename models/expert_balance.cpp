#include "models/expert_balance.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace fsdp::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RoundHolder : torch::CustomClassHolder {
  explicit RoundHolder(std::shared_ptr<BalanceRound> round) : round(std::move(round)) {}
  std::shared_ptr<BalanceRound> round;
};

void keep_round(AutogradContext* context, const std::shared_ptr<BalanceRound>& round) {
  context->set_materialize_grads(false);
  context->saved_data["round"] = c10::IValue::make_capsule(c10::make_intrusive<RoundHolder>(round));
}

const std::shared_ptr<BalanceRound>& round_of(AutogradContext* context) {
  const auto capsule = context->saved_data["round"].toCapsule();  // which the context keeps
  return static_cast<const RoundHolder*>(capsule.get())->round;
}

// y, whose backward sends the balancing loss's gradient to the scores.
struct AtLayer : torch::autograd::Function<AtLayer> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& scores_NE,
                            const std::shared_ptr<BalanceRound>& round) {
    keep_round(context, round);
    context->saved_data["tokens"] = scores_NE.size(0);
    return y.view_as(y);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const BalanceRound& round = *round_of(context);
    if (!round.upstream.defined() || !round.slope_E.defined()) return {gradients[0], at::Tensor(), at::Tensor()};
    const at::Tensor slope_E = round.slope_E * round.upstream;
    return {gradients[0], slope_E.expand({context->saved_data["tokens"].toInt(), slope_E.size(0)}), at::Tensor()};
  }
};

// x and a 0 that stands for the loss: their backward runs before that of all layers.
struct AtEnd : torch::autograd::Function<AtEnd> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::shared_ptr<BalanceRound>& round) {
    keep_round(context, round);
    return {x.view_as(x), at::zeros({}, x.options().dtype(at::kFloat))};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::shared_ptr<BalanceRound>& round = round_of(context);
    round->upstream = gradients[1];
    // Of this backward alone: one that comes to the layers without coming by here, such as that of a penalty on
    // gradients, has no such loss. One that fails leaves it to whoever comes by here next.
    torch::autograd::Engine::get_default_engine().queue_callback([round] { round->upstream = at::Tensor(); });
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor balance_slope(const at::Tensor& counts_E, double rows) {
  return counts_E * (static_cast<double>(counts_E.size(0)) / (rows * rows));
}

void ExpertBalance::begin() {
  *this = ExpertBalance();
  round_ = std::make_shared<BalanceRound>();
  is_watching_ = true;
}

at::Tensor ExpertBalance::watch(const at::Tensor& y, const kernels::Routing& routing) {
  if (!round_) return y;
  if (is_watching_) {
    counts_.push_back(kernels::count_choices(routing));
    num_tokens_ = routing.scores_NE.size(0);
    score_sums_.push_back(routing.scores_NE.detach().sum(0, /*keepdim=*/false, at::kDouble));
  }
  if (!at::GradMode::is_enabled() || !routing.scores_NE.requires_grad()) return y;
  return AtLayer::apply(y, routing.scores_NE, round_);
}

at::Tensor ExpertBalance::finish(const at::Tensor& x) {
  is_watching_ = false;
  if (!round_ || !at::GradMode::is_enabled() || !x.requires_grad()) return x;
  const variable_list result = AtEnd::apply(x, round_);
  handle_ = result[1];
  return result[0];
}

ExpertChoices ExpertBalance::take() {
  is_watching_ = false;
  ExpertChoices choices;
  choices.round = round_;
  if (counts_.empty()) return choices;
  choices.counts_LE = at::stack(std::exchange(counts_, {})).to(at::kCPU, at::kDouble);
  choices.score_sums_E = at::stack(std::exchange(score_sums_, {})).sum(0).to(at::kCPU);
  choices.tokens = num_tokens_;
  return choices;
}

void ExpertBalance::resume(const std::shared_ptr<BalanceRound>& round, const at::Tensor& gradient_E) {
  round->slope_E = gradient_E;
  round->upstream = at::ones({}, gradient_E.options());
  round_ = round;
}

at::Tensor ExpertBalance::loss(ExpertRanks* ranks) {
  if (counts_.empty()) return {};
  const at::NoGradGuard no_grad;
  counts_LE_ = at::stack(std::exchange(counts_, {})).to(at::kCPU, at::kDouble);
  at::Tensor numbers = at::cat({counts_LE_.flatten(), at::full({1}, static_cast<double>(num_tokens_), at::kDouble)});
  if (ranks != nullptr) numbers = ranks->add_up(numbers);
  counts_LE_ = numbers.narrow(0, 0, counts_LE_.numel()).view_as(counts_LE_);
  const double rows = numbers[-1].item<double>() * static_cast<double>(counts_LE_.size(0));
  at::Tensor sums_E = at::stack(std::exchange(score_sums_, {})).sum(0);
  if (ranks != nullptr) sums_E = ranks->add_up_alike(sums_E.cpu()).to(sums_E.device());
  const at::Tensor slope_E = balance_slope(counts_LE_.sum(0), rows).to(sums_E.device());
  round_->slope_E = slope_E.to(at::kFloat);
  const at::Tensor value = (slope_E * sums_E).sum().to(at::kFloat);
  const at::Tensor handle = std::exchange(handle_, {});
  if (!handle.defined()) return value;
  const at::AutoGradMode with_grad(true);
  return handle + value;
}

}  // namespace fsdp::models
