#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "train/config/config.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// A text that the model wrote.
struct Sample {
  std::string prompt;
  std::string text;  // what follows the prompt; UTF-8
};

// One line of samples.jsonl, without the newline.
std::string to_json(int64_t step, const Sample& sample);

// For a terminal: one line, control characters as escapes.
std::string printable(const std::string& utf8);

// "a|b" -> "a", "b".
std::vector<std::string> split_prompts(const std::string& prompts);

// Lets a model that is being trained continue some texts. Neither weights nor random numbers of the training notice:
// each prompt has a generator of its own, the same each time.
class SampleWriter {
 public:
  // `tokenizer`: that of the data. If samples are asked for, throws Error(kUsage) where there is none, io::Error(kData)
  // for a prompt that it cannot encode.
  SampleWriter(const SampleConfig& config, int64_t seed, std::optional<tokenizer::Tokenizer> tokenizer);

  bool is_due(int64_t step) const { return config_.every_steps > 0 && step > 0 && step % config_.every_steps == 0; }
  // COLLECTIVE. Every rank runs as many forwards as the others.
  std::vector<Sample> write(ShardedModel& model) const;

 private:
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;  // at least one
  };

  std::string decode(const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids) const;
  std::vector<int32_t> continue_ids(ShardedModel& model, std::vector<int32_t> ids) const;

  SampleConfig config_;
  int64_t seed_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::vector<Prompt> prompts_;
};

}  // namespace fsdp::train
