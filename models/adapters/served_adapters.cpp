#include "models/adapters/served_adapters.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/products/linear.h"

namespace fsdp::models {

void TokenAdapters::choose(const std::vector<int64_t>& numbers) {
  std::map<int64_t, std::vector<int64_t>> places;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != kNone) places[numbers[i]].push_back(static_cast<int64_t>(i));
  }
  groups_.clear();
  for (const auto& [adapter, tokens] : places) groups_.push_back({adapter, at::tensor(tokens, at::kLong)});
  num_tokens_ = static_cast<int64_t>(numbers.size());
}

void ServedMap::add(int64_t adapter, ServedFactors factors) { factors_.emplace(adapter, std::move(factors)); }

void ServedMap::apply(const at::Tensor& y, const at::Tensor& x) const {
  const int64_t count = x.numel() / x.size(-1);
  TORCH_CHECK(count == tokens_->num_tokens(), "[adapters] got ", count, " tokens, expected the ", tokens_->num_tokens(),
              " that adapters were chosen for.");
  const at::Tensor y_NO = y.view({count, y.size(-1)}), x_NI = x.reshape({count, x.size(-1)});
  for (const TokenAdapters::Group& group : tokens_->groups()) {
    const auto found = factors_.find(group.adapter);
    if (found == factors_.end()) continue;
    const ServedFactors& factors = found->second;
    const at::Tensor tokens = group.tokens.to(x.device());
    const at::Tensor own = x_NI.index_select(0, tokens);
    const at::Tensor added = kernels::linear(kernels::linear(own, factors.a), factors.b).mul_(factors.scale);
    if (!factors.gain.defined()) {
      y_NO.index_add_(0, tokens, added);
      continue;
    }
    const at::Tensor sum = added.add_(y_NO.index_select(0, tokens)).to(at::kFloat);
    y_NO.index_copy_(0, tokens, at::addcmul(sum, sum, factors.gain).to(y.scalar_type()));
  }
}

}  // namespace fsdp::models
