// What generation keeps of the tokens so far.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp::models {

// Keys and values of several rows, each with as many tokens as it has seen. Memory is taken when first needed and grows
// by doubling, for all rows alike: rows x tokens x layers x 2 x key heads x head dim (rounded up to a multiple of 16).
// Layers with a window keep as much as the others. Lives where the model does. A value; not thread-safe.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t num_rows = 1) : lengths_(static_cast<size_t>(num_rows)) {}

  int64_t num_rows() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens(int64_t row = 0) const { return lengths_.at(static_cast<size_t>(row)); }

  // Of `row` only the first `num_tokens`, at most those it has, count from now on.
  void keep(int64_t row, int64_t num_tokens);

  // For the model. One forward: `num_new_tokens` tokens for each of `rows`, which stand at the positions starts(); then
  // attend() once per layer; then finish(), which counts them.
  void begin(std::vector<int64_t> rows, std::vector<int64_t> num_new_tokens, int64_t num_layers);
  const std::vector<int64_t>& starts() const { return starts_; }
  // q [B, T, H, D], k and v [B, T, K, D] of rows[0], rows[1], ...; or [1, sum of T, ...] of as many tokens as each of
  // the rows has, which had none before. Result as q. Takes k and v in; each query sees the tokens up to its own, with
  // a window only the last `window` (0: all).
  at::Tensor attend(int64_t layer, const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                    int64_t window = 0);
  void finish();

 private:
  struct Layer {
    at::Tensor k_RKCW, v_RKCW;
  };
  void make_room(at::Tensor& kept_RKCW, const at::Tensor& x_BTKD) const;
  void store(const at::Tensor& x_BTKD, at::Tensor& kept_RKCW) const;

  std::vector<Layer> layers_;
  std::vector<int64_t> lengths_;                  // [R] tokens
  std::vector<int64_t> rows_, starts_, num_new_;  // of this forward
};

}  // namespace fsdp::models
