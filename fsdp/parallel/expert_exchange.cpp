#include "fsdp/parallel/expert_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/comm/comm.h"

namespace fsdp::parallel {
namespace {

using Counts = std::vector<std::vector<int64_t>>;

Counts reversed(const Counts& counts) {
  Counts result(counts.size(), std::vector<int64_t>(counts.size()));
  for (size_t from = 0; from < counts.size(); ++from) {
    for (size_t to = 0; to < counts.size(); ++to) result[to][from] = counts[from][to];
  }
  return result;
}

struct Passage : torch::CustomClassHolder {
  Passage(std::shared_ptr<Ranks> ranks, Counts counts, std::string layer)
      : ranks(std::move(ranks)), counts(std::move(counts)), layer(std::move(layer)) {}
  std::shared_ptr<Ranks> ranks;
  Counts counts;
  std::string layer;
};

struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<Passage>& passage) {
    context->saved_data["passage"] = c10::IValue::make_capsule(passage);
    return passage->ranks->exchange(rows, passage->counts, passage->layer);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["passage"].toCapsule();
    const auto* passage = static_cast<const Passage*>(capsule.get());
    // Itself an exchange, so that a gradient of the gradient travels, too.
    const auto back =
        c10::make_intrusive<Passage>(passage->ranks, reversed(passage->counts), passage->layer + " (backward)");
    return {Exchange::apply(gradients[0], back), at::Tensor()};
  }
};

at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

}  // namespace

ExpertExchange::ExpertExchange(const at::Tensor& experts_NK, int64_t num_experts, std::shared_ptr<Ranks> ranks,
                               std::string layer)
    : ranks_(std::move(ranks)), layer_(std::move(layer)), experts_per_token_(experts_NK.size(1)) {
  check_divides(num_experts, ranks_->size(), "experts", layer_);
  const Backstage backstage;
  const int64_t size = ranks_->size(), own = num_experts / size;
  const at::Tensor choices = experts_NK.flatten();
  by_expert_ = choices.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  by_choice_ = inverse_of(by_expert_);
  const at::Tensor mine = at::bincount(choices, /*weights=*/{}, num_experts).cpu();
  at::Tensor of_ranks = mine;
  if (size > 1) {
    of_ranks = at::empty({size * num_experts}, mine.options());
    ranks_->comm()->all_gather(of_ranks, mine, {"count tokens of experts over " + ranks_->axis(), layer_, ""}).wait();
  }
  const auto count = [&](int64_t from, int64_t expert) {
    return of_ranks.const_data_ptr<int64_t>()[from * num_experts + expert];
  };
  counts_.assign(static_cast<size_t>(size), std::vector<int64_t>(static_cast<size_t>(size)));
  std::vector<int64_t> begins;  // of what comes, by rank and expert
  int64_t rows = 0;
  for (int64_t from = 0; from < size; ++from) {
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      counts_[static_cast<size_t>(from)][static_cast<size_t>(expert / own)] += count(from, expert);
      if (expert / own != ranks_->rank()) continue;
      begins.push_back(rows);
      rows += count(from, expert);
    }
  }
  std::vector<int64_t> order;
  for (int64_t expert = 0; expert < own; ++expert) {
    const size_t before = order.size();
    for (int64_t from = 0; from < size; ++from) {
      const int64_t begin = begins[static_cast<size_t>(from * own + expert)];
      for (int64_t i = 0; i < count(from, ranks_->rank() * own + expert); ++i) order.push_back(begin + i);
    }
    rows_of_experts_.push_back(static_cast<int64_t>(order.size() - before));
  }
  from_ranks_ = at::tensor(order, at::kLong).to(choices.device());
  to_ranks_ = inverse_of(from_ranks_);
}

at::Tensor ExpertExchange::dispatch(const at::Tensor& x_NH) const {
  const at::Tensor rows = x_NH.index_select(0, at::floor_divide(by_expert_, experts_per_token_));
  if (ranks_->size() == 1) return rows;
  return Exchange::apply(rows, c10::make_intrusive<Passage>(ranks_, counts_, layer_ + " (to experts)"))
      .index_select(0, from_ranks_);
}

at::Tensor ExpertExchange::combine(const at::Tensor& y_RH, const at::Tensor& weights_NK) const {
  at::Tensor rows = y_RH;
  if (ranks_->size() > 1) {
    rows = Exchange::apply(rows.index_select(0, to_ranks_),
                           c10::make_intrusive<Passage>(ranks_, reversed(counts_), layer_ + " (from experts)"));
  }
  const at::Tensor y_NKH = rows.index_select(0, by_choice_).unflatten(0, {-1, experts_per_token_});
  return (y_NKH * weights_NK.unsqueeze(-1).to(y_NKH.scalar_type())).sum(1);
}

}  // namespace fsdp::parallel
