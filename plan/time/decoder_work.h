// What a decoder-only language model computes and moves in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config/decoder_config.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

// down(silu(gate(x)) * up(x)), three matrices; or down(gelu(up(x))), two.
enum class Mlp { kGated, kPlain };

struct DecoderShape {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_key_heads = 0;
  int64_t head_dim = 0;
  Mlp mlp = Mlp::kGated;
  bool ties_embeddings = false;
  int64_t num_positions = 0;           // rows of a table of learnt positions; 0: none
  int64_t extra_layer_parameters = 0;  // biases, and norms of heads, beside a layer's two norms
  std::vector<int64_t> windows;        // of each layer, 0: none; empty: none at all
  models::LatentConfig latent = {};
  models::ExpertsConfig experts = {};

  static DecoderShape of(const models::DecoderConfig& config);
  int64_t layer_matrix_parameters() const;
  int64_t layer_parameters() const;
  int64_t num_parameters() const;
};

// What is computed again in the backward: nothing; the norms' outputs and the product that the down projection reads;
// gate and up as well; every second product, and all that is neither product nor attention (torchtitan's selective
// option "op"); everything but a block's input.
enum class Recompute { kNone, kElementwise, kGateUp, kEverySecondProduct, kBlock };

// kFused: norms, rotary embedding, activation and loss read and write each tensor once, as this project's kernels do,
// or torch.compile. kEager: an operator for each step, as in PyTorch without a compiler.
enum class Fusion { kFused, kEager };

// How ranks that share a sequence get at each other's keys and values: all at once, or block by block.
enum class SequenceExchange { kGather, kRing };

// What ranks that share layers, sequences or experts do beside the calls between them: nothing that counts, or what
// this project's layers do, copies, masks and index arithmetic (fsdp/parallel/).
enum class BesideCalls { kNothing, kThisProject };

struct DecoderSetup {
  int64_t sequence_length = 0;
  int64_t sequences = 1;       // of a rank in a microbatch
  int64_t sequence_ranks = 1;  // ranks that share a sequence; each computes an equal part of its tokens
  SequenceExchange sequence_exchange = SequenceExchange::kGather;
  int64_t expert_ranks = 1;  // that have all experts among them
  double busiest_experts =
      1;                     // rows of the rank with the busiest ones, of which each gets as many, over an equal share
  int64_t tensor_ranks = 1;  // that share each layer, and between layers the tokens; the shape is a rank's part
  int microbatches = 1;
  Recompute recompute = Recompute::kNone;
  double recomputed_share = 1;  // of the blocks
  Fusion fusion = Fusion::kFused;
  BesideCalls beside_calls = BesideCalls::kNothing;
  Dtype dtype = Dtype::kBf16;  // of weights and activations

  // ---- per parameter
  int64_t gather_bytes = 2;      // that travel
  int64_t reduce_bytes = 4;      // likewise
  double gather_copy_bytes = 0;  // that each gather reads and writes beside that, before the weights can be used
  double reduce_copy_bytes = 0;  // likewise, each reduction; this project has no copies, its peers do
  double optimizer_bytes = 30;   // AdamW in one pass: fp32 weight, gradient and moments, bf16 copy, and the norm

  Strategy strategy = Strategy::kOptimGradsParams;
  int shard_ranks = 1;
  int replica_ranks = 1;
  int ranks_per_node = 8;
  schedule::Schedule schedule;

  // Of a rank in a microbatch.
  double tokens() const {
    return static_cast<double>(sequence_length * sequences) / static_cast<double>(sequence_ranks);
  }
};

// Units as train/model/parallelize.cpp makes them: a block for each layer, and the root, which has embedding, last norm
// and head, so that it is used first and last. With `expert_ranks` or `tensor_ranks` the experts of a layer have a
// passage of their own behind the layer's. With experts or latent attention no bytes of weights and FLOPs are counted.
// Bytes are those of the parameters, without padding. Throws std::invalid_argument for sizes that are not positive.
StepWork decoder_work(const DecoderShape& shape, const DecoderSetup& setup);

// Per token, forward and backward, with causal attention; recomputation does not count. The formula of
// models::flops_per_token().
double model_flops_per_token(const DecoderShape& shape, int64_t sequence_length);

}  // namespace fsdp::plan::time
