#include "models/key_value_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/cached_attention.h"
#include "kernels/causal_attention.h"

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

void KeyValueCache::begin(std::vector<int64_t> rows, int64_t num_new_tokens, int64_t num_layers) {
  layers_.resize(static_cast<size_t>(num_layers));
  starts_.clear();
  for (const int64_t row : rows) starts_.push_back(num_tokens(row));
  rows_ = std::move(rows);
  num_new_ = num_new_tokens;
}

void KeyValueCache::make_room(at::Tensor& kept_RKCW, const at::Tensor& x_BTKD) const {
  const int64_t needed = *std::max_element(starts_.begin(), starts_.end()) + num_new_;
  const int64_t capacity = kept_RKCW.defined() ? kept_RKCW.size(2) : 0;
  if (needed <= capacity) return;
  const int64_t larger = std::max({needed, 2 * capacity, kLeastCapacity});
  const at::Tensor grown = at::empty({num_rows(), x_BTKD.size(2), larger, kernels::cached_width(x_BTKD.size(3))},
                                     x_BTKD.options().requires_grad(false));
  const int64_t used = std::min(capacity, *std::max_element(lengths_.begin(), lengths_.end()));
  if (used > 0) grown.narrow(2, 0, used).copy_(kept_RKCW.narrow(2, 0, used));
  kept_RKCW = grown;
}

at::Tensor KeyValueCache::attend(int64_t layer, const at::Tensor& q_BTHD, const at::Tensor& k_BTKD,
                                 const at::Tensor& v_BTKD, int64_t window) {
  Layer& kept = layers_.at(static_cast<size_t>(layer));
  make_room(kept.k_RKCW, k_BTKD);
  make_room(kept.v_RKCW, v_BTKD);
  kernels::store_in_cache(k_BTKD, kept.k_RKCW, rows_, starts_);
  kernels::store_in_cache(v_BTKD, kept.v_RKCW, rows_, starts_);
  // Many queries of a fresh row: blocks of them share the keys.
  const bool is_fresh = std::all_of(starts_.begin(), starts_.end(), [](int64_t start) { return start == 0; });
  if (is_fresh && num_new_ > 1) return kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, {}, window);
  return kernels::cached_attention(q_BTHD, kept.k_RKCW, kept.v_RKCW, rows_, starts_, window);
}

void KeyValueCache::finish() {
  for (const int64_t row : rows_) lengths_[static_cast<size_t>(row)] += num_new_;
}

}  // namespace fsdp::models
