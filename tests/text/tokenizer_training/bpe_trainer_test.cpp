// Trained vocabularies against those of Hugging Face's tokenizers (tests/data/make_bpe_golden.py).
#include "text/tokenizer_training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/io/temporary_folder.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer_training/training.h"

namespace fsdp::tokenizer_training {
namespace {

using nlohmann::json;

const json& golden() {
  static const json content =
      json::parse(io::read_text(std::filesystem::path(FSDP_SOURCE_DIR) / "tests/data/bpe.json"));
  return content;
}

std::vector<std::string> documents() { return golden().at("documents").get<std::vector<std::string>>(); }

WordCounts count(const std::vector<std::string>& texts, SplitPattern pattern,
                 const WordCounter::Options& options = {}) {
  WordCounter counter(pre_tokenizer_of(pattern), options);
  for (const std::string& text : texts) {
    counter.add(text);
  }
  return counter.finish();
}

std::map<std::string, uint64_t> as_map(const WordCounts& words) {
  std::map<std::string, uint64_t> map;
  words.for_each([&](std::string_view text, const WordCounts::Word& word) { map.emplace(text, word.count); });
  return map;
}

BpeOptions options_of(const json& run) {
  return {run.at("vocab_size").get<int64_t>(), run.at("min_frequency").get<uint64_t>(),
          run.at("special").get<std::vector<std::string>>()};
}

SplitPattern pattern_of(const json& run) { return *find_split_pattern(run.at("pattern").get<std::string>()); }

TEST(BpeTrainer, EqualsTokenizers) {
  for (const json& run : golden().at("runs")) {
    SCOPED_TRACE(run.at("pattern").get<std::string>() + " " + run.at("vocab_size").dump());
    const BpeModel model = train_bpe(count(documents(), pattern_of(run)), options_of(run));
    EXPECT_EQ(model.tokens, run.at("tokens").get<std::vector<std::string>>());
    EXPECT_EQ(json(model.merges), run.at("merges"));
  }
}

TEST(BpeTrainer, OrderAndThreadsChangeNothing) {
  const json& run = golden().at("runs").at(0);
  const BpeModel expected = train_bpe(count(documents(), SplitPattern::kGpt2), options_of(run));
  std::vector<std::string> shuffled = documents();
  constexpr unsigned kSeed = 5;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(kSeed));
  WordCounter::Options options;
  options.threads = 5;
  options.batch_bytes = 300;
  const BpeModel model = train_bpe(count(shuffled, SplitPattern::kGpt2, options), options_of(run));
  EXPECT_EQ(model.tokens, expected.tokens);
  EXPECT_EQ(model.merges, expected.merges);
}

TEST(BpeTrainer, RefusesWhatCannotBe) {
  const auto error = [](BpeOptions options) { return io::catch_error([&] { train_bpe({}, options); }); };
  EXPECT_TRUE(error({256, 2, {"<s>"}}).says("got 256, expected 257"));
  EXPECT_TRUE(error({1 << 25, 2, {}}).says("got 33554432"));
  EXPECT_TRUE(error({300, 2, {"<s>", "<s>"}}).says("'<s>': got it twice"));
  EXPECT_TRUE(error({300, 2, {""}}).says("got nothing"));
  EXPECT_TRUE(error({300, 2, {"\xFF"}}).says("got bytes that are not UTF-8"));
  EXPECT_EQ(train_bpe({}, {300, 2, {"<s>"}}).tokens.size(), 257u);
}

TEST(WordCounter, CountsEveryWord) {
  const auto words = as_map(count({"a bc a", " bc 12", ""}, SplitPattern::kDigits));
  EXPECT_EQ(words, (std::map<std::string, uint64_t>{{"a", 1}, {" a", 1}, {" bc", 2}, {" ", 1}, {"1", 1}, {"2", 1}}));
}

TEST(WordCounter, MemoryIsBoundedAndTheSameForAnyNumberOfThreads) {
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back("often " + std::to_string(i) + " rarely" + std::to_string(i / 2));
  }
  WordCounter::Options options;
  options.batch_bytes = 4000;
  options.max_bytes = 50'000;
  std::vector<std::map<std::string, uint64_t>> results;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    WordCounter counter(pre_tokenizer_of(SplitPattern::kGpt2), options);
    for (const std::string& text : texts) {
      counter.add(text);
    }
    results.push_back(as_map(counter.finish()));
    EXPECT_GT(counter.num_forgotten(), 1000u);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_LT(results[0].size(), 1000u);
  EXPECT_EQ(results[0].at("often"), 3000u);
}

TEST(WordCounter, VeryLongWordsAreLeftOut) {
  WordCounter::Options options;
  options.max_word_bytes = 10;
  WordCounter counter(pre_tokenizer_of(SplitPattern::kGpt2), options);
  counter.add("short " + std::string(11, 'x') + " " + std::string(9, 'y'));
  EXPECT_EQ(as_map(counter.finish()).count("short"), 1u);
  EXPECT_EQ(counter.num_long(), 1u);
}

class TrainedTokenizer : public testing::Test {
 protected:
  tokenizer::Tokenizer train(SplitPattern pattern, const std::string& begin) {
    std::filesystem::create_directories(folder_ / "in");
    int number = 0;
    for (const std::string& text : documents()) {
      io::write_text(folder_ / ("in/" + std::to_string(number++) + ".txt"), text);
    }
    options_.inputs = {folder_ / "in"};
    options_.vocab_size = 350;
    options_.tokenizer.pattern = pattern;
    options_.tokenizer.begin_token = begin;
    options_.tokenizer.end_token = "<|end|>";
    options_.tokenizer.special_tokens = {"<|end|>", "<|begin|>"};
    result_ = train_tokenizer(options_, [](const Progress&) {});
    write_tokenizer(folder_ / "out/deep", result_.model, options_.tokenizer);
    return tokenizer::Tokenizer::load(folder_ / "out/deep");
  }

  io::TemporaryFolder folder_;
  TrainingOptions options_;
  TrainingResult result_;
};

TEST_F(TrainedTokenizer, IsLoadedAndReadsBackAllText) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kDigits}) {
    const tokenizer::Tokenizer tokenizer = train(pattern, "");
    EXPECT_EQ(tokenizer.vocab_size(), static_cast<int64_t>(result_.model.tokens.size()));
    EXPECT_EQ(result_.num_documents, documents().size());
    EXPECT_EQ(tokenizer.eos(), 0);
    EXPECT_FALSE(tokenizer.bos().has_value());
    for (const std::string& text : documents()) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
    EXPECT_EQ(tokenizer.encode("a<|end|>"), (std::vector<int32_t>{*tokenizer.id_of("a"), 0}));
  }
}

TEST_F(TrainedTokenizer, PutsTheBeginTokenInFront) {
  const tokenizer::Tokenizer tokenizer = train(SplitPattern::kGpt2, "<|begin|>");
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.encode("a", tokenizer::SpecialTokens::kAdd), (std::vector<int32_t>{1, *tokenizer.id_of("a")}));
}

}  // namespace
}  // namespace fsdp::tokenizer_training
