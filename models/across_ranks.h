// What a decoder asks of other ranks, where its layers or its sequences are cut over them.
// Shape suffixes: B rows, T tokens, E hidden, V vocabulary, N tokens of all rows, H heads, K key heads, D head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/operators/cross_entropy.h"

namespace fsdp::models {

// A decoder whose layers are cut (tensor parallelism) has a part of the outputs of q, k, v, gate and up, of the inputs
// of o and down, and of the vocabulary; what it computes with those it takes from here. Between layers a rank has a
// part of the tokens, [B, T / ranks, E]. All are COLLECTIVE and have gradients; `layer` names who asks, for errors.
class AcrossRanks {
 public:
  AcrossRanks() = default;
  virtual ~AcrossRanks() = default;
  AcrossRanks(const AcrossRanks&) = delete;
  AcrossRanks& operator=(const AcrossRanks&) = delete;

  // What the maps of a layer read: x [B, T / ranks, E] -> [B, T, E].
  virtual at::Tensor enter_layer(const at::Tensor& x_BTE, const std::string& layer) = 0;
  // What a layer adds to the residual: y [B, T, E] is this rank's term of a sum, `bias` [E], undefined where there is
  // none, that of all -> [B, T / ranks, E].
  virtual at::Tensor leave_layer(const at::Tensor& y_BTE, const at::Tensor& bias_E, const std::string& layer) = 0;

  // weight [V / ranks, E], ids [B, T] of the whole vocabulary -> [B, T / ranks, E].
  virtual at::Tensor embed(const at::Tensor& weight_VE, const at::Tensor& ids_BT) = 0;
  // hidden [B, T / ranks, E], weight [V / ranks, E] -> [B, T, V].
  virtual at::Tensor logits(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE) = 0;
  // kernels::cross_entropy() of those logits, which nobody ever has whole; targets [N].
  virtual at::Tensor loss(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                          kernels::Reduction reduction, const kernels::LossTerms& terms) = 0;

  // Sequences may be cut, too (context parallelism): then T above is what a rank has of them, which the decoder is
  // given the ids of, together with a Sequence that tells of all tokens. Of how many parts they are; 1: whole.
  virtual int64_t sequence_parts() const = 0;
  // This rank's part of x [B, T of whole sequences]. Local.
  virtual at::Tensor part_of_sequences(const at::Tensor& x_BT) const = 0;
  // kernels::causal_attention() of the whole sequences, for the queries of this rank's part; `document_lengths` of all
  // B rows, whole.
  virtual at::Tensor attend(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                            const std::vector<int64_t>& document_lengths, int64_t window, const std::string& layer) = 0;
};

}  // namespace fsdp::models
