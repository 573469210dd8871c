#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/decoder.h"

namespace fsdp::train {

struct GenerationOptions {
  int64_t max_tokens = 256;
  double temperature = 1.0;  // 0: always the most likely token
  int64_t top_k = 0;         // draw from this many of the most likely tokens; 0: from all
  uint64_t seed = 1;
};

// Continues `prompt` (at least one id) token by token with a cache of keys and values, and hands each new id to `emit`.
// Ends after max_tokens or at one of `stop_ids`, which is not emitted. The same seed gives the same ids.
void generate(models::Decoder& model, const std::vector<int64_t>& prompt, const std::vector<int64_t>& stop_ids,
              const GenerationOptions& options, const std::function<void(int64_t)>& emit);

}  // namespace fsdp::train
