#include "models/key_value_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/operators/cached_attention.h"
#include "kernels/operators/causal_attention.h"

namespace fsdp::models {
namespace {

constexpr int64_t kLeastCapacity = 64;  // tokens

}  // namespace

void KeyValueCache::keep(int64_t row, int64_t num_tokens) {
  int64_t& length = lengths_.at(static_cast<size_t>(row));
  TORCH_CHECK(num_tokens >= 0 && num_tokens <= length, "[cache] row ", row, " has ", length, " tokens, cannot keep ",
              num_tokens);
  length = num_tokens;
}

void KeyValueCache::begin(std::vector<int64_t> rows, std::vector<int64_t> num_new_tokens, int64_t num_layers) {
  layers_.resize(static_cast<size_t>(num_layers));
  starts_.clear();
  for (const int64_t row : rows) starts_.push_back(num_tokens(row));
  rows_ = std::move(rows);
  num_new_ = std::move(num_new_tokens);
}

void KeyValueCache::make_room(at::Tensor& kept_RKCW, const at::Tensor& x_BTKD) const {
  int64_t needed = 0;
  for (size_t i = 0; i < rows_.size(); ++i) needed = std::max(needed, starts_[i] + num_new_[i]);
  const int64_t capacity = kept_RKCW.defined() ? kept_RKCW.size(2) : 0;
  if (needed <= capacity) return;
  const int64_t larger = std::max({needed, 2 * capacity, kLeastCapacity});
  const std::vector<int64_t> sizes{num_rows(), x_BTKD.size(2), larger, kernels::cached_width(x_BTKD.size(3))};
  const at::TensorOptions options = x_BTKD.options().requires_grad(false);
  // Devices multiply keys that a row does not have with nought, which a NaN survives.
  const at::Tensor grown = x_BTKD.is_cpu() ? at::empty(sizes, options) : at::zeros(sizes, options);
  const int64_t used = std::min(capacity, *std::max_element(lengths_.begin(), lengths_.end()));
  if (used > 0) grown.narrow(2, 0, used).copy_(kept_RKCW.narrow(2, 0, used));
  kept_RKCW = grown;
}

void KeyValueCache::store(const at::Tensor& x_BTKD, at::Tensor& kept_RKCW) const {
  make_room(kept_RKCW, x_BTKD);
  if (x_BTKD.size(0) == static_cast<int64_t>(rows_.size()))
    return kernels::store_in_cache(x_BTKD, kept_RKCW, rows_, starts_);
  int64_t first = 0;
  for (size_t i = 0; i < rows_.size(); first += num_new_[i++])
    kernels::store_in_cache(x_BTKD.narrow(1, first, num_new_[i]), kept_RKCW, rows_[i], starts_[i]);
}

at::Tensor KeyValueCache::attend(int64_t layer, const at::Tensor& q_BTHD, const at::Tensor& k_BTKD,
                                 const at::Tensor& v_BTKD, int64_t window) {
  Layer& kept = layers_.at(static_cast<size_t>(layer));
  store(k_BTKD, kept.k_RKCW);
  store(v_BTKD, kept.v_RKCW);
  // Of fresh rows blocks of queries share the keys.
  const bool is_fresh = std::all_of(starts_.begin(), starts_.end(), [](int64_t start) { return start == 0; });
  if (is_fresh) return kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, num_new_, window);
  return kernels::cached_attention(q_BTHD, kept.k_RKCW, kept.v_RKCW, rows_, starts_, window);
}

void KeyValueCache::finish() {
  for (size_t i = 0; i < rows_.size(); ++i) lengths_[static_cast<size_t>(rows_[i])] += num_new_[i];
}

}  // namespace fsdp::models
