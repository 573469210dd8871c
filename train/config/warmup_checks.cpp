#include "train/config/warmup_checks.h"

#include <algorithm>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

constexpr int64_t kMostLevels = 65536;       // of a batch that grows
constexpr int64_t kMostTokens = 1000000000;  // of a sequence that grows

[[noreturn]] void refuse_warmup(const std::string& message) { throw Error(ErrorCode::kUsage, message); }

// Either both keys or none.
void check_pair(const std::string& key, int64_t value, const std::string& other, int64_t other_value) {
  if ((value > 0) == (other_value > 0)) return;
  const std::string given = value > 0 ? key : other, missing = value > 0 ? other : key;
  refuse_warmup(given + ": got " + std::to_string(std::max(value, other_value)) + " with " + missing +
                " = 0, expected both or none. Set " + missing + ", or leave " + given + " out.");
}

// What counts on every step to be alike.
void check_batch_warmup_fits(const Config& config) {
  const auto refuse_with = [](const std::string& key, const std::string& why) {
    refuse_warmup("train.batch_warmup_sequences: got a batch that grows with " + key + ", " + why +
                  ". Leave one of them out.");
  };
  if (config.train.world_invariant) refuse_with("train.world_invariant", "whose tree of sums has one size");
  if (config.train.fit_minutes > 0) refuse_with("train.fit_minutes", "which takes the time of a step for that of all");
  if (config.mesh.pp > 1) refuse_with("mesh.pp = " + std::to_string(config.mesh.pp), "whose order is made once");
  if (config.train.cuda_graphs && config.train.microbatch_sequences == 0)
    refuse_with("train.cuda_graphs and microbatches of no given size", "which are recorded for one size");
}

void check_batch_warmup(const Config& config) {
  const int64_t first = config.train.batch_warmup_sequences, batch = config.train.batch_sequences;
  check_pair("train.batch_warmup_sequences", first, "train.batch_warmup_steps", config.train.batch_warmup_steps);
  if (first == 0) return;
  if (first >= batch || batch % first != 0 || batch / first > kMostLevels) {
    refuse_warmup("train.batch_warmup_sequences: got " + std::to_string(first) + " for a batch of " +
                  std::to_string(batch) + " sequences, expected a divisor below it, at least a " +
                  std::to_string(kMostLevels) + "th of it. Change one of the two.");
  }
  check_batch_warmup_fits(config);
}

void check_sequence_warmup(const DataConfig& data) {
  const int64_t first = data.sequence_warmup_length, whole = data.sequence_length;
  check_pair("data.sequence_warmup_length", first, "data.sequence_warmup_steps", data.sequence_warmup_steps);
  if (first == 0) return;
  if (first >= whole || whole > kMostTokens) {
    refuse_warmup("data.sequence_warmup_length: got " + std::to_string(first) + " for data.sequence_length = " +
                  std::to_string(whole) + ", expected fewer tokens than that, and at most " +
                  std::to_string(kMostTokens) + " of it. Lower it, or leave the warm-up out.");
  }
}

}  // namespace

void check_warmups(const Config& config) {
  check_batch_warmup(config);
  check_sequence_warmup(config.data);
}

void resolve_batch(Config& config) {
  const int64_t tokens = config.train.batch_tokens, length = config.data.sequence_length;
  if (tokens == 0) return;
  if (tokens % length != 0) {
    const int64_t below = tokens / length * length;
    refuse_warmup("train.batch_tokens: got " + std::to_string(tokens) + ", expected a multiple of " +
                  "data.sequence_length = " + std::to_string(length) + ". Set it to " +
                  (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + length) + ".");
  }
  config.train.batch_sequences = tokens / length;
}

}  // namespace fsdp::train
