#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::parallel {

// Attention of queries to keys that come block by block: the softmax over all of them is put together from what each
// block adds, without their scores ever being together. All tensors are fp32 or fp64 and of one dtype; queries
// [B, K, G, T, D], where G of them share one head of keys; keys and values [B, K, S, D]. Local, without gradients:
// those are computed by these functions too. After: Milakov and Gimelshein 2018, Dao et al. 2022.

// Keys that queries do not see, [1 or B, T, S] bool; undefined: they see all.
using Hidden = at::Tensor;

// What the blocks so far make of T queries.
struct AttentionSums {
  explicit AttentionSums(const at::Tensor& queries);
  at::Tensor values;   // [B, K, G, T, D]: values times exp(score - largest)
  at::Tensor weights;  // [B, K, G, T, 1]: sums of exp(score - largest)
  at::Tensor largest;  // [B, K, G, T, 1]: score; minus infinity: nothing was seen yet
};

// Rows [first, first + T) of `sums`.
void add_block(const AttentionSums& sums, int64_t first, const at::Tensor& queries, const at::Tensor& keys,
               const at::Tensor& values, const Hidden& hidden);

// Of all rows that see something: their attention, and the logarithm of what they divided by.
struct AttentionResult {
  at::Tensor output;       // [B, K, G, T, D]
  at::Tensor log_sum_exp;  // [B, K, G, T, 1]
};
AttentionResult result_of(const AttentionSums& sums);

// Of T rows, narrowed from the whole. `slope`: sum over D of output times its gradient.
struct QueryGradients {
  at::Tensor queries, log_sum_exp, output_gradient, slope;
  at::Tensor gradient;  // of the queries; is added to
};
// Adds to the gradients of the queries, keys and values what this block makes of them.
void add_block_gradients(const QueryGradients& rows, const at::Tensor& keys, const at::Tensor& values,
                         const Hidden& hidden, const at::Tensor& key_gradient, const at::Tensor& value_gradient);

}  // namespace fsdp::parallel
