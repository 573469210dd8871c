#include "fsdp/parallel/attention_block.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace fsdp::parallel {
namespace {

// Heads that share keys side by side: [B, K, G, T, D] -> [B, K, G T, D].
at::Tensor side_by_side(const at::Tensor& x) { return x.flatten(2, 3); }

// [B, K, G, T, S]
at::Tensor scores_of(const at::Tensor& queries, const at::Tensor& keys, const Hidden& hidden) {
  at::Tensor scores = side_by_side(queries)
                          .matmul(keys.transpose(-1, -2))
                          .mul_(1 / std::sqrt(static_cast<double>(queries.size(-1))))
                          .unflatten(2, {queries.size(2), queries.size(3)});
  if (hidden.defined()) scores.masked_fill_(hidden.unsqueeze(1).unsqueeze(1), -std::numeric_limits<double>::infinity());
  return scores;
}

}  // namespace

AttentionSums::AttentionSums(const at::Tensor& queries)
    : values(at::zeros_like(queries, at::MemoryFormat::Contiguous)),
      weights(at::zeros_like(queries.narrow(-1, 0, 1), at::MemoryFormat::Contiguous)),
      largest(at::full_like(weights, -std::numeric_limits<double>::infinity())) {}

void add_block(const AttentionSums& sums, int64_t first, const at::Tensor& queries, const at::Tensor& keys,
               const at::Tensor& values, const Hidden& hidden) {
  const auto rows = [&](const at::Tensor& x) { return x.narrow(3, first, queries.size(3)); };
  at::Tensor scores = scores_of(queries, keys, hidden);
  const at::Tensor largest = at::maximum(rows(sums.largest), scores.amax(-1, /*keepdim=*/true));
  // Rows that have seen nothing yet have nothing to add up either.
  const at::Tensor base = largest.masked_fill(largest.isinf(), 0);
  const at::Tensor shares = scores.sub_(base).exp_();
  const at::Tensor before = rows(sums.largest).sub(base).exp_();
  rows(sums.weights).mul_(before).add_(shares.sum(-1, /*keepdim=*/true));
  rows(sums.values)
      .mul_(before)
      .add_(side_by_side(shares).matmul(values).unflatten(2, {queries.size(2), queries.size(3)}));
  rows(sums.largest).copy_(largest);
}

AttentionResult result_of(const AttentionSums& sums) {
  return {sums.values / sums.weights, sums.weights.log() + sums.largest};
}

void add_block_gradients(const QueryGradients& rows, const at::Tensor& keys, const at::Tensor& values,
                         const Hidden& hidden, const at::Tensor& key_gradient, const at::Tensor& value_gradient) {
  const std::vector<int64_t> split = {rows.queries.size(2), rows.queries.size(3)};
  const at::Tensor shares = scores_of(rows.queries, keys, hidden).sub_(rows.log_sum_exp).exp_();
  const at::Tensor output_gradient = side_by_side(rows.output_gradient);
  value_gradient.add_(side_by_side(shares).transpose(-1, -2).matmul(output_gradient));
  const at::Tensor share_gradient = output_gradient.matmul(values.transpose(-1, -2)).unflatten(2, split);
  const at::Tensor score_gradient = side_by_side(share_gradient.sub(rows.slope).mul_(shares))
                                        .mul_(1 / std::sqrt(static_cast<double>(rows.queries.size(-1))));
  rows.gradient.add_(score_gradient.matmul(keys).unflatten(2, split));
  key_gradient.add_(score_gradient.transpose(-1, -2).matmul(side_by_side(rows.queries)));
}

}  // namespace fsdp::parallel
