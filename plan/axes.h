// What the axes beside the data's change in a plan (docs/parallelism.md).
#pragma once

#include <cstdint>

#include "plan/call_ledger.h"
#include "plan/model.h"
#include "plan/rank_part.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Throws io::Error(kUsage) for a model that the setup's axes do not divide, naming the sizes that do, and for settings
// that do not go with them.
void check_axes(const PlannedModel& model, const Setup& setup);

// What one of `tensor` ranks has of a decoder's layers: outputs of q, k, v, gate and up, inputs of o and down, a part
// of the vocabulary; norms and experts whole. Where heads of keys and values are fewer than ranks, some have the same
// one; adapters are cut where their map is. The model itself where `tensor` is 1. REQUIRES: check_axes().
PlannedModel part_of_rank(const PlannedModel& model, int64_t tensor);
// The configuration of that part: fewer heads, inner features and tokens of the vocabulary.
models::DecoderConfig part_of_rank(const models::DecoderConfig& config, int64_t tensor);

// Whether a layer has an MLP for every token, which `tensor` ranks cut; experts see a token by itself and stay whole.
bool has_cut_mlp(const models::DecoderConfig& config, int64_t layer);

// Bytes of what travels in one call, of all ranks of the axis together: a hidden state; keys and values.
int64_t tensor_call_bytes(const models::DecoderConfig& whole, const Setup& setup);
int64_t context_call_bytes(const models::DecoderConfig& whole, const Setup& setup);
// The same of their gradients in a ring, which are added up in fp32 at least.
int64_t context_gradient_bytes(const models::DecoderConfig& whole, const Setup& setup);
// Of what a rank sends to experts or gets back from them, what stays there included; of what a stage hands to the next.
int64_t expert_call_bytes(const models::DecoderConfig& whole, const Setup& setup);
int64_t stage_message_bytes(const models::DecoderConfig& whole, const Setup& setup);

// Whether ranks along `cp` pass keys and values in a ring, as the runtime would choose for sequences with several
// documents. `part`: what a rank along `tp` has.
bool takes_ring(const models::DecoderConfig& part, const Setup& setup);

// Adds the calls of a step, those to experts as if every expert got as many tokens. But for calls that send a few
// numbers: of each token's loss, or of each expert's tokens.
void add_axis_calls(const PlannedModel& whole, const RankPart& part, const Setup& setup, CallLedger& calls);

}  // namespace fsdp::plan
