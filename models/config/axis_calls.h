// How often a decoder that is cut over ranks (models/across_ranks.h) calls them for activations, in each direction.
#pragma once

#include <cstdint>

namespace fsdp::models {

// Attention and MLP each gather the tokens that they read, and scatter sums of what they computed.
inline constexpr int64_t kTensorCallsOfBlock = 4;
// Experts see a token by itself: where all are experts, but for attention nothing is gathered.
inline constexpr int64_t kTensorCallsOfBlockWithExperts = 2;
inline constexpr int64_t kTensorCallsOfEmbedding = 1;
inline constexpr int64_t kTensorCallsOfHead = 1;
// Keys and values together.
inline constexpr int64_t kContextCallsOfBlock = 1;
// Tokens go to their experts, and results come back.
inline constexpr int64_t kExpertCallsOfBlock = 2;

}  // namespace fsdp::models
