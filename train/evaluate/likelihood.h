#pragma once

#include <cstdint>
#include <vector>

#include "train/model/inference_model.h"

namespace fsdp::train {

// Tokens of which those from `first_target` on are scored, each given all that stand before it. At least one stands
// before the first target, and one is a target.
struct ScoredText {
  std::vector<int32_t> ids;
  int64_t first_target = 1;

  int64_t num_targets() const { return static_cast<int64_t>(ids.size()) - first_target; }
};

// COLLECTIVE; every rank passes the same texts and gets the same results: per text the sum over its targets of
// log p(token | tokens before), in nats. Texts are packed into forwards of about `tokens_at_a_time` tokens, whatever
// the number of ranks; the forwards are dealt out. Throws Error(kUsage) for a text without target or with ids outside
// the model's vocabulary.
std::vector<double> log_likelihoods(InferenceModel& model, const std::vector<ScoredText>& texts,
                                    int64_t tokens_at_a_time);

}  // namespace fsdp::train
