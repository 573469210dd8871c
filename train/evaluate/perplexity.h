#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/evaluate/likelihood.h"

namespace fsdp::train {

// Texts longer than the model looks back are read in windows of `context` ids, each `stride` ids after the one before;
// a window scores the ids that no earlier one has scored. A short stride gives every id much to look back on and costs
// context / stride times the work.
struct Windows {
  int64_t context = 0;
  int64_t stride = 0;  // 1 .. context - 1
};

// The windows of one document. Its first id is scored by none: nothing stands before it. A document of one id has none.
// After: huggingface.co/docs/transformers/perplexity.
std::vector<ScoredText> windows_of(std::span<const int32_t> ids, const Windows& windows);

// What a model thinks of some text. Sums over documents.
struct Perplexity {
  double nats = 0;            // -log p of all scored tokens
  int64_t num_tokens = 0;     // scored
  int64_t num_bytes = 0;      // of the text
  int64_t num_documents = 0;  // with a scored token

  double per_token() const;      // e^(nats / tokens)
  double bits_per_byte() const;  // 0 without bytes
};

// COLLECTIVE. Collects documents and scores them, many at a time; every rank adds the same ones.
class PerplexityMeter {
 public:
  // `model` must outlive it. Throws Error(kUsage) for windows that do not fit the model.
  PerplexityMeter(InferenceModel& model, const Windows& windows);

  void add(std::span<const int32_t> ids, int64_t num_bytes);
  // Of all documents so far.
  const Perplexity& result();

 private:
  void score();

  InferenceModel& model_;
  Windows windows_;
  std::vector<ScoredText> waiting_;
  int64_t num_waiting_ = 0;  // tokens
  Perplexity sum_;
};

}  // namespace fsdp::train
