#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/adapters/served_adapters.h"
#include "models/decoder.h"
#include "train/generate/sampling.h"

namespace fsdp::train {

// Why a row ended.
enum class Finish {
  kStopId,     // one of stop_ids was drawn; it is not part of the row
  kStopped,    // on_token said so: a stop string
  kMaxTokens,  // as many as were asked for
  kContext,    // the model can look back no further
};
const char* name(Finish finish);  // "stop_id", "stop_string", "max_tokens", "context"

enum class Verdict { kContinue, kStop };

// One text that is to be continued.
struct GenerationRequest {
  std::vector<int64_t> prompt;    // at least one id
  std::vector<int64_t> stop_ids;  // end the row
  SamplingOptions sampling;
  int64_t max_tokens = 256;
  int64_t adapter = models::TokenAdapters::kNone;    // number of the one that it is continued with
  std::function<Verdict(int64_t id)> on_token = {};  // called with each new id
  std::function<void(Finish)> on_finish = {};
};

// Whether rows begin with what an earlier row of their place and their adapter left in the cache.
enum class Prefixes { kRecompute, kReuse };

struct GenerationOptions {
  int64_t num_rows = 8;  // that are continued together, at most kernels::kFewRows
  int64_t context = 0;   // most tokens of a row; 0: the model's max_position_embeddings
  // kReuse saves a conversation the reading of what was said before. Its ids are then computed by other shapes of
  // matrix products, so that nearly equal logits may be ordered otherwise.
  Prefixes prefixes = Prefixes::kRecompute;
  std::shared_ptr<models::TokenAdapters> adapters = {};  // of the model, where requests name some; null: none
};

// Continues many texts, several at a time, with a cache of keys and values; a text that ends makes room for the next.
// On the CPU what a row becomes depends on its request only: not on the rows beside it, their number, or the order of
// requests; on a device nearly equal logits may be ordered otherwise. Not thread-safe; requests' functions are called
// from step().
class Generator {
 public:
  // `model` must outlive it. Throws Error(kUsage) for options out of range.
  Generator(models::Decoder model, const GenerationOptions& options);
  ~Generator();

  // Throws Error(kUsage) for an empty prompt, a prompt that leaves no room in the context, ids outside the vocabulary,
  // or sampling options out of range.
  void add(GenerationRequest request);
  bool has_work() const;
  // One forward: reads waiting prompts, as many as there are rows free for and are short, or continues all rows by a
  // token.
  void step();

  int64_t context() const { return context_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }  // read so far, reused ones not counted
  int64_t num_new_tokens() const { return num_new_tokens_; }        // drawn so far

 private:
  struct Row;
  Row* free_row(const GenerationRequest& request);
  std::vector<int64_t> begin_row(Row& row);
  void read_prompts();
  void continue_rows();
  void take(Row& row, std::span<const float> logits);

  models::Decoder model_;
  int64_t context_;
  Prefixes prefixes_;
  std::shared_ptr<models::TokenAdapters> adapters_;
  models::KeyValueCache cache_;
  std::deque<GenerationRequest> waiting_;
  std::vector<std::unique_ptr<Row>> rows_;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_new_tokens_ = 0;
};

}  // namespace fsdp::train
