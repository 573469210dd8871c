#include "train/evaluate/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "io/base/error.h"
#include "io/base/json.h"

namespace fsdp::train {
namespace {

constexpr int64_t kChoiceTokensAtATime = 2048;
constexpr size_t kQuestionsAtATime = 256;
constexpr const char* kSpaces = " \t\n\r";

[[noreturn]] void refuse(const std::string& origin, const std::string& detail) {
  throw io::Error(io::ErrorKind::kData,
                  "[eval] " + origin + ": " + detail +
                      R"(, expected {"question" or "context": text, "choices": [text, text, ...], )"
                      R"("answer": index of the right one}.)");
}

bool is_space(char c) { return std::string_view(kSpaces).find(c) != std::string_view::npos; }

std::string read_context(const nlohmann::json& json, const std::string& origin) {
  const bool is_question = json.contains("question");
  const char* key = is_question ? "question" : "context";
  if (!json.contains(key) || !json[key].is_string()) refuse(origin, std::string("got no text \"") + key + "\"");
  const auto& text = json[key].get_ref<const std::string&>();
  return is_question ? "Question: " + text + "\nAnswer:" : text;
}

// Keeps the last `context` ids; says whether there were more.
bool cut(ScoredText& text, int64_t context) {
  const int64_t surplus = static_cast<int64_t>(text.ids.size()) - context;
  if (surplus <= 0) return false;
  text.ids.erase(text.ids.begin(), text.ids.begin() + surplus);
  text.first_target = std::max<int64_t>(1, text.first_target - surplus);
  return true;
}

// Index of the largest, the first of equals.
size_t best(const std::vector<double>& scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

struct QuestionBatch {
  std::vector<ScoredText> texts;
  std::vector<const MultipleChoice*> questions;
};

void count_answers(const std::vector<double>& sums, const std::vector<const MultipleChoice*>& questions,
                   MultipleChoiceResult& result) {
  const double* sum = sums.data();
  for (const MultipleChoice* question : questions) {
    std::vector<double> raw, normalized;
    for (const std::string& choice : question->choices) {
      raw.push_back(*sum);
      normalized.push_back(*sum++ / static_cast<double>(std::max<size_t>(1, choice.size())));
    }
    ++result.num_questions;
    result.num_right += best(raw) == question->answer ? 1 : 0;
    result.num_right_normalized += best(normalized) == question->answer ? 1 : 0;
  }
}

}  // namespace

MultipleChoice parse_multiple_choice(std::string_view line, const std::string& origin) {
  const nlohmann::json json = io::parse_json(line, origin, {.max_bytes = uint64_t{16} << 20});
  if (!json.is_object()) refuse(origin, "got no JSON object");
  MultipleChoice question;
  question.context = read_context(json, origin);
  if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].size() < 2)
    refuse(origin, "got no list \"choices\" of two or more");
  for (const auto& choice : json["choices"]) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      refuse(origin, "got a choice without text");
    question.choices.push_back(choice.get<std::string>());
  }
  if (!json.contains("answer") || !json["answer"].is_number_integer()) refuse(origin, "got no number \"answer\"");
  const auto answer = json["answer"].get<int64_t>();
  if (answer < 0 || answer >= static_cast<int64_t>(question.choices.size()))
    refuse(origin, "got answer " + std::to_string(answer) + " of " + std::to_string(question.choices.size()) +
                       " choices, counted from 0");
  question.answer = static_cast<size_t>(answer);
  return question;
}

double MultipleChoiceResult::accuracy() const {
  return num_questions == 0 ? 0 : static_cast<double>(num_right) / static_cast<double>(num_questions);
}

double MultipleChoiceResult::accuracy_normalized() const {
  return num_questions == 0 ? 0 : static_cast<double>(num_right_normalized) / static_cast<double>(num_questions);
}

double standard_error(double mean, int64_t count) {
  return count < 2 ? 0 : std::sqrt(mean * (1 - mean) / static_cast<double>(count - 1));
}

ScoredText scored_choice(const tokenizer::Tokenizer& tokenizer, const MultipleChoice& question, size_t choice) {
  const std::string& answer = question.choices.at(choice);
  // White space between the two belongs to the choice: tokenizers merge it with the word that follows.
  const size_t end = question.context.find_last_not_of(kSpaces);
  const std::string before = question.context.substr(0, end == std::string::npos ? 0 : end + 1);
  std::string between = question.context.substr(before.size());
  if (between.empty() && !before.empty() && !is_space(answer.front())) between = " ";
  const std::vector<int32_t> known = tokenizer.encode(before, tokenizer::SpecialTokens::kAdd);
  ScoredText text;
  text.ids = tokenizer.encode(before + between + answer, tokenizer::SpecialTokens::kAdd);
  text.first_target =
      std::mismatch(known.begin(), known.end(), text.ids.begin(), text.ids.end()).second - text.ids.begin();
  text.first_target = std::min(text.first_target, static_cast<int64_t>(text.ids.size()) - 1);
  if (text.first_target < 1) {  // something must stand before the first target
    text.ids.insert(text.ids.begin(), tokenizer.bos().value_or(tokenizer.eos().value_or(0)));
    text.first_target = 1;
  }
  return text;
}

MultipleChoiceResult evaluate(InferenceModel& model, const tokenizer::Tokenizer& tokenizer,
                              const std::vector<MultipleChoice>& questions, int64_t context) {
  MultipleChoiceResult result;
  QuestionBatch batch;
  const auto score = [&] {
    count_answers(log_likelihoods(model, batch.texts, kChoiceTokensAtATime), batch.questions, result);
    batch = {};
  };
  for (const MultipleChoice& question : questions) {
    for (size_t choice = 0; choice < question.choices.size(); ++choice) {
      batch.texts.push_back(scored_choice(tokenizer, question, choice));
      result.num_cut += cut(batch.texts.back(), context) ? 1 : 0;
    }
    batch.questions.push_back(&question);
    if (batch.questions.size() == kQuestionsAtATime) score();
  }
  score();
  return result;
}

}  // namespace fsdp::train
