// Causal attention with grouped heads: over plain rows, packed documents, or a cache of earlier keys.
// Shape suffixes: B rows, T query tokens, S key tokens, H query heads, K key heads, D head dim, E hidden.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "models/decoder_config.h"
#include "models/linear.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// Keys and values of one layer for the tokens so far, or for those that a window may still see; grows by doubling.
struct LayerCache {
  at::Tensor k_BSKD, v_BSKD;  // room for tokens first, first + 1, ...
  int64_t first = 0;          // position of the first token kept

  // Stores k and v [B, T, K, D] at positions start .. start + T - 1 and returns views of all that these tokens may see:
  // with a window, theirs and the `window` - 1 before; without one (0), everything up to there. With a window the room
  // stays below twice what is returned.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& k_BTKD, const at::Tensor& v_BTKD, int64_t start,
                                           int64_t window = 0);
};

// What all layers of one forward share.
struct AttentionInputs {
  at::Tensor cos, sin;                       // [T, D] or [B, T, D], dtype of the activations
  std::vector<int64_t> document_lengths;     // of the B * T tokens in order; empty: each row is one document
  std::vector<LayerCache>* cache = nullptr;  // one per layer
  int64_t cached_tokens = 0;
};

// softmax(q k^T / sqrt(D)) v for the last T of S tokens, each of which sees the tokens up to itself: all, or with a
// `window` above 0 the last `window`.
//   q [B, T, H, D], k, v [B, S, K, D], S >= T, H a multiple of K; result [B, T, H, D]. For generation: not meant to be
//   differentiated.
at::Tensor cached_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BSKD, const at::Tensor& v_BSKD,
                            int64_t window = 0);

// The attention block, with Hugging Face's parameter names q_proj, k_proj, v_proj, o_proj, q_norm, k_norm.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  // x, result [B, T, E].
  at::Tensor forward(const at::Tensor& x_BTE, const AttentionInputs& inputs);

 private:
  at::Tensor attend(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                    const AttentionInputs& inputs) const;

  int64_t layer_, head_dim_, window_;
  bool has_rope_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};  // null where the family has none
};
TORCH_MODULE(Attention);

}  // namespace fsdp::models
