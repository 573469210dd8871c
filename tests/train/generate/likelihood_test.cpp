// Log-likelihoods, perplexity and multiple choice against logits that transformers computed, and by hand.
#include "train/evaluate/likelihood.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/model/model_files.h"
#include "train/evaluate/multiple_choice.h"
#include "train/evaluate/perplexity.h"
#include "train/model/stored_tensor.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> golden_models() {
  std::vector<fs::path> folders;
  for (const fs::path& root : {fs::path(FSDP_SOURCE_DIR) / "tests/data/models", fs::path(FSDP_FIXTURES_DIR) / "models"})
    for (const char* name : {"smollm3-mini", "llama3-mini", "smollm3-tiny", "llama3-tiny", "llama2-tiny",
                             "smollm2-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"})
      if (fs::exists(root / name / "expected.safetensors")) folders.push_back(root / name);
  return folders;
}

// Per row the log-probability of each token after the first, from the file's logits.
std::vector<std::vector<double>> expected_log_probabilities(const at::Tensor& logits_BTV, const at::Tensor& ids_BT) {
  const at::Tensor log_p = at::log_softmax(logits_BTV.to(at::kDouble), -1);
  std::vector<std::vector<double>> rows;
  for (int64_t row = 0; row < ids_BT.size(0); ++row) {
    rows.emplace_back();
    for (int64_t t = 1; t < ids_BT.size(1); ++t)
      rows.back().push_back(log_p[row][t - 1][ids_BT[row][t].item<int64_t>()].item<double>());
  }
  return rows;
}

std::vector<int32_t> to_vector(const at::Tensor& ids_T) {
  const at::Tensor ids = ids_T.to(at::kInt).contiguous();
  return {ids.const_data_ptr<int32_t>(), ids.const_data_ptr<int32_t>() + ids.numel()};
}

TEST(Likelihood, EqualsThatOfTheLogitsOfTransformers) {
  ASSERT_GE(golden_models().size(), 2u);
  for (const fs::path& folder : golden_models()) {
    SCOPED_TRACE(folder);
    const auto file = io::SafetensorsFile::open(folder / "expected.safetensors");
    const at::Tensor ids_BT = read_tensor(file, "input_ids");
    const auto rows = expected_log_probabilities(read_tensor(file, "logits"), ids_BT);
    std::vector<ScoredText> texts;
    std::vector<double> expected;
    for (int64_t row = 0; row < ids_BT.size(0); ++row) {
      for (const int64_t first : {int64_t{1}, int64_t{9}, ids_BT.size(1) - 1}) {
        const std::vector<double>& log_p = rows[static_cast<size_t>(row)];
        texts.push_back({to_vector(ids_BT[row]), first});
        expected.push_back(std::accumulate(log_p.begin() + first - 1, log_p.end(), 0.0));
      }
    }
    InferenceModel model(folder, "fp32", World{});
    for (const int64_t tokens_at_a_time : {1, 100, 100000}) {
      const std::vector<double> got = log_likelihoods(model, texts, tokens_at_a_time);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected[i], 2e-4 + 1e-5 * std::abs(expected[i])) << i;
    }
  }
}

TEST(Likelihood, RefusesWhatCannotBeScored) {
  InferenceModel model(golden_models().front(), "fp32", World{});
  EXPECT_THROW(log_likelihoods(model, {{{1}, 1}}, 100), Error);
  EXPECT_THROW(log_likelihoods(model, {{{1, 2}, 0}}, 100), Error);
  EXPECT_THROW(log_likelihoods(model, {{{1, 1 << 20}, 1}}, 100), Error);
  EXPECT_THROW(log_likelihoods(model, {{{1, -1}, 1}}, 100), Error);
  EXPECT_TRUE(log_likelihoods(model, {}, 100).empty());
}

TEST(Windows, EveryTokenAfterTheFirstOnce) {
  for (int64_t length = 0; length < 40; ++length) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), 0);
    for (const Windows& windows : std::vector<Windows>{{8, 4}, {8, 7}, {8, 1}, {2, 1}, {64, 3}}) {
      std::vector<int32_t> scored;
      for (const ScoredText& text : windows_of(ids, windows)) {
        EXPECT_LE(static_cast<int64_t>(text.ids.size()), windows.context);
        EXPECT_GE(text.first_target, 1);
        // A window starts at a multiple of the stride, and looks back context - stride tokens at least.
        EXPECT_EQ(text.ids.front() % windows.stride, 0);
        if (text.ids.front() > 0) {
          EXPECT_GE(text.first_target, windows.context - windows.stride);
        }
        scored.insert(scored.end(), text.ids.begin() + text.first_target, text.ids.end());
      }
      EXPECT_EQ(scored, std::vector<int32_t>(ids.begin() + std::min<int64_t>(1, length), ids.end()))
          << length << " " << windows.context << " " << windows.stride;
    }
  }
}

TEST(PerplexityMeter, EqualsWindowsOfTheModelsLogits) {
  const io::TemporaryFolder folder;
  write_model(folder / "model", small_config(), 3);
  InferenceModel model(folder / "model", "fp32", World{});
  std::vector<int32_t> ids;
  for (int i = 0; i < 75; ++i) ids.push_back(3 + 29 * i % 250);
  PerplexityMeter meter(model, {.context = 32, .stride = 20});
  meter.add(ids, 100);
  meter.add(std::vector<int32_t>{5, 6}, 7);
  meter.add(std::vector<int32_t>{5}, 1);
  // The same by the whole forward of each window.
  const at::NoGradGuard no_grad;
  const auto nats = [&](size_t begin, size_t end, size_t first) {
    std::vector<int64_t> window(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                ids.begin() + static_cast<std::ptrdiff_t>(end));
    const at::Tensor ids_BT = at::tensor(window, at::kLong).unsqueeze(0);
    const auto rows = expected_log_probabilities(model.decoder()->forward(ids_BT), ids_BT);
    return -std::accumulate(rows[0].begin() + static_cast<std::ptrdiff_t>(first - begin - 1), rows[0].end(), 0.0);
  };
  const at::Tensor two = at::tensor({5, 6}, at::kLong).unsqueeze(0);
  const double expected = nats(0, 32, 1) + nats(20, 52, 32) + nats(40, 72, 52) + nats(60, 75, 72) -
                          expected_log_probabilities(model.decoder()->forward(two), two)[0][0];
  const Perplexity& result = meter.result();
  EXPECT_NEAR(result.nats, expected, 1e-3);
  EXPECT_EQ(result.num_tokens, 75);
  EXPECT_EQ(result.num_bytes, 108);
  EXPECT_EQ(result.num_documents, 2);
  EXPECT_NEAR(result.per_token(), std::exp(expected / 75), 1e-3 * result.per_token());
  EXPECT_NEAR(result.bits_per_byte(), expected / 108 / std::log(2.0), 1e-4);
  EXPECT_THROW(PerplexityMeter(model, {.context = 1, .stride = 1}), Error);
  EXPECT_THROW(PerplexityMeter(model, {.context = 8, .stride = 8}), Error);
  EXPECT_THROW(PerplexityMeter(model, {.context = 1 << 30, .stride = 8}), Error);
}

TEST(MultipleChoice, ReadsLines) {
  const MultipleChoice question =
      parse_multiple_choice(R"({"question": "Why?", "choices": ["a", "b"], "answer": 1})", "f:1");
  EXPECT_EQ(question.context, "Question: Why?\nAnswer:");
  EXPECT_EQ(question.choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(question.answer, 1u);
  EXPECT_EQ(parse_multiple_choice(R"({"context": "x", "choices": ["a", "b"], "answer": 0})", "f:1").context, "x");
  for (const char* line :
       {"", "[]", "{}", R"({"context": 1, "choices": ["a", "b"], "answer": 0})", R"({"context": "x", "answer": 0})",
        R"({"context": "x", "choices": ["a"], "answer": 0})", R"({"context": "x", "choices": ["a", ""], "answer": 0})",
        R"({"context": "x", "choices": ["a", "b"]})", R"({"context": "x", "choices": ["a", "b"], "answer": 2})",
        R"({"context": "x", "choices": ["a", "b"], "answer": -1})",
        R"({"context": "x", "choices": ["a", "b"], "answer": "b"})"}) {
    try {
      parse_multiple_choice(line, "file.jsonl:7");
      FAIL() << line;
    } catch (const io::Error& error) {
      EXPECT_NE(std::string(error.what()).find("file.jsonl:7"), std::string::npos) << error.what();
    }
  }
}

TEST(MultipleChoice, ScoresTheChoiceAndTheSpaceBeforeIt) {
  const tokenizer::Tokenizer bytes = tokenizer::Tokenizer::bytes();
  const auto text_of = [&](const std::string& context, const std::string& choice) {
    const ScoredText text = scored_choice(bytes, {context, {choice, "other"}, 0}, 0);
    return bytes.decode({text.ids.begin() + text.first_target, text.ids.end()});
  };
  EXPECT_EQ(text_of("Two is", "even"), " even");
  EXPECT_EQ(text_of("Two is ", "even"), " even");
  EXPECT_EQ(text_of("Two is", "\neven"), "\neven");
  EXPECT_EQ(text_of("", "even"), "even");
}

// The right answer is whichever the logits of single forwards find likelier.
TEST(MultipleChoice, AccuracyRawAndByLength) {
  const io::TemporaryFolder folder;
  write_model(folder / "model", small_config(), 3);
  InferenceModel model(folder / "model", "fp32", World{});
  const tokenizer::Tokenizer bytes = tokenizer::Tokenizer::bytes();
  const at::NoGradGuard no_grad;
  const auto log_p_of = [&](const std::string& text, size_t choice_bytes) {
    std::vector<int64_t> ids{256};
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    const at::Tensor ids_BT = at::tensor(ids, at::kLong).unsqueeze(0);
    const auto row = expected_log_probabilities(model.decoder()->forward(ids_BT), ids_BT)[0];
    return std::accumulate(row.end() - static_cast<std::ptrdiff_t>(choice_bytes), row.end(), 0.0);
  };
  std::vector<MultipleChoice> questions;
  int right = 0, right_by_length = 0;
  for (int i = 0; i < 40; ++i) {
    MultipleChoice question{
        "context " + std::to_string(i), {"no", "perhaps so", std::to_string(i * i)}, static_cast<size_t>(i % 3)};
    std::vector<double> raw, by_length;
    for (const std::string& choice : question.choices) {
      raw.push_back(log_p_of(question.context + " " + choice, choice.size() + 1));
      by_length.push_back(raw.back() / static_cast<double>(choice.size()));
    }
    right += std::max_element(raw.begin(), raw.end()) - raw.begin() == i % 3;
    right_by_length += std::max_element(by_length.begin(), by_length.end()) - by_length.begin() == i % 3;
    questions.push_back(std::move(question));
  }
  const MultipleChoiceResult result = evaluate(model, bytes, questions, 128);
  EXPECT_EQ(result.num_questions, 40);
  EXPECT_EQ(result.num_right, right);
  EXPECT_EQ(result.num_right_normalized, right_by_length);
  EXPECT_EQ(result.num_cut, 0);
  EXPECT_EQ(evaluate(model, bytes, questions, 8).num_cut, 120);
}

TEST(MultipleChoice, StandardErrorOfAMean) {
  EXPECT_DOUBLE_EQ(standard_error(0.25, 101), std::sqrt(0.25 * 0.75 / 100));
  EXPECT_EQ(standard_error(1, 50), 0);
  EXPECT_EQ(standard_error(0.5, 1), 0);
}

}  // namespace
}  // namespace fsdp::train
