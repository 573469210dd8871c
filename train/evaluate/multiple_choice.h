#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "train/evaluate/likelihood.h"

namespace fsdp::train {

// A question whose answers a model ranks by their likelihood.
struct MultipleChoice {
  std::string context;  // what every choice follows
  std::vector<std::string> choices;
  size_t answer = 0;  // index of the right one
};

// One line {"question" or "context": text, "choices": [text, ...], "answer": index}. A question is written
// "Question: <question>\nAnswer:"; a context is taken as it is. `origin` names the line in messages. Throws
// io::Error(kData) for anything else.
MultipleChoice parse_multiple_choice(std::string_view line, const std::string& origin);

// Which choice was the likeliest, over many questions.
struct MultipleChoiceResult {
  int64_t num_questions = 0;
  int64_t num_right = 0;             // by the log-likelihood of the choice
  int64_t num_right_normalized = 0;  // by that divided by the choice's length in bytes
  int64_t num_cut = 0;               // texts that lost their beginning because the model looks back less far

  double accuracy() const;
  double accuracy_normalized() const;
};

// Standard error of a mean of `count` zeros and ones that is `mean`; 0 for fewer than two.
double standard_error(double mean, int64_t count);

// The text that is scored for a choice: context, a space unless there is white space already, choice. The targets are
// the tokens after those that the context alone begins with.
ScoredText scored_choice(const tokenizer::Tokenizer& tokenizer, const MultipleChoice& question, size_t choice);

// COLLECTIVE; the same on all ranks. Texts of more than `context` ids lose their beginning. Ties go to the first
// choice. After: EleutherAI lm-evaluation-harness, acc and acc_norm.
MultipleChoiceResult evaluate(InferenceModel& model, const tokenizer::Tokenizer& tokenizer,
                              const std::vector<MultipleChoice>& questions, int64_t context);

}  // namespace fsdp::train
