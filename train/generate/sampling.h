#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <unordered_set>
#include <vector>

namespace fsdp::train {

// How the next token is drawn. Applied in this order, as in transformers: repetition penalty, temperature, top-k,
// top-p, min-p.
struct SamplingOptions {
  double temperature = 1.0;         // logits are divided by it; 0: always the most likely token
  int64_t top_k = 0;                // draw from this many of the most likely tokens; 0: from all
  double top_p = 1.0;               // from the most likely ones that together have this probability, at least one
  double min_p = 0.0;               // from those with at least this share of the most likely one's probability
  double repetition_penalty = 1.0;  // logits of ids that were there: divided by it if positive, else multiplied
  uint64_t seed = 1;
};

// Draws the tokens of one row. What it draws depends on the options and the logits only, not on rows beside it, and is
// the same everywhere where the logits are. Equal logits: the lower id is the likelier.
class Sampler {
 public:
  // Throws Error(kUsage) for an option out of range, naming it.
  explicit Sampler(const SamplingOptions& options);

  // `id` is in the text: the prompt's ids, and each one drawn.
  void saw(int64_t id);
  // Logits of all ids, of which NaN and -inf are impossible. Throws Error(kNonFinite) if all are.
  int64_t draw(std::span<const float> logits);

 private:
  std::span<const float> penalise(std::span<const float> logits);
  std::vector<int64_t> likeliest(std::span<const float> logits, size_t count) const;
  std::vector<int64_t> kept(std::span<const float> logits, size_t most) const;
  int64_t draw_from(const std::vector<int64_t>& ids);
  int64_t draw_from_all();
  double uniform();

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::unordered_set<int64_t> seen_;
  std::vector<float> penalised_;
  std::vector<float> weights_;  // of the softmax, up to a factor
  std::vector<double> cumulative_;
};

}  // namespace fsdp::train
