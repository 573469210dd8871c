#pragma once

#include <cstdint>

namespace fsdp {

// What gradients are multiplied with before the ranks' are added up. The sum on the wire is always a plain one.
struct GradScale {
  enum class Kind {
    kMean,      // 1 / (ranks * divisor): the gradient of the mean of the ranks' losses (default)
    kSum,       // 1 / divisor
    kPerToken,  // 1 / (tokens of all ranks * divisor): the gradient per token of losses that are sums over tokens
  };
  Kind kind = Kind::kMean;
  double divisor = 1;
  int64_t tokens = 0;  // kPerToken: target tokens of this rank in the whole step

  static GradScale mean(double divisor = 1) { return {Kind::kMean, divisor, 0}; }
  static GradScale sum(double divisor = 1) { return {Kind::kSum, divisor, 0}; }
  static GradScale per_token(int64_t tokens_of_this_rank) { return {Kind::kPerToken, 1, tokens_of_this_rank}; }

  bool operator==(const GradScale&) const = default;
};

// What a gradient is multiplied with in the end, and which part of that is due after the sum over the ranks where it
// travels in fp16 and is kept wider: in fp16 the sum of undivided values overflows, and values that are divided by all
// ranks vanish. A power of two, so that multiplying changes no digit. After: FSDP's pre- and post-division.
struct ReductionFactors {
  double total = 1;
  double after = 1;
};

}  // namespace fsdp
