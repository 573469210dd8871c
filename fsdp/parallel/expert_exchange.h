#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// The way of tokens to the ranks of their experts and back. Expert e of E is on rank e / (E / ranks). No token is
// dropped, however many choose one expert. N tokens of this rank, K experts of each; R choices that came to this rank.
// Bytes of the whole way: R and N K rows of H numbers, less those that stay on this rank; the backward moves as much.
class ExpertExchange {
 public:
  // experts_NK: long, on the host or a device. COLLECTIVE over the ranks: they tell each other how many tokens each
  // expert gets, which the host waits for. Throws Error(kUsage): the ranks do not divide the experts.
  ExpertExchange(const at::Tensor& experts_NK, int64_t num_experts, std::shared_ptr<Ranks> ranks, std::string layer);

  // x_NH -> [R, H]: the rows for this rank's experts, one expert after the other, each in the order of ranks and
  // tokens. COLLECTIVE, and so is its backward.
  at::Tensor dispatch(const at::Tensor& x_NH) const;
  // What the experts made of those rows, [R, H'] -> [N, H']: for each token the sum of its experts' results times
  // weights_NK. COLLECTIVE likewise.
  at::Tensor combine(const at::Tensor& y_RH, const at::Tensor& weights_NK) const;

  // Of each of this rank's experts; some may be 0.
  const std::vector<int64_t>& rows_of_experts() const { return rows_of_experts_; }

 private:
  std::shared_ptr<Ranks> ranks_;
  std::string layer_;
  int64_t experts_per_token_;
  std::vector<std::vector<int64_t>> counts_;  // [from][to], rows
  std::vector<int64_t> rows_of_experts_;
  at::Tensor by_expert_;   // choices [N * K], sorted by expert
  at::Tensor by_choice_;   // and back
  at::Tensor from_ranks_;  // [R]: rows as they come, expert by expert
  at::Tensor to_ranks_;    // and back
};

}  // namespace fsdp::parallel
