// `fsdp eval` as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

class Eval : public TrainingFixture {
 protected:
  static void SetUpTestSuite() {
    TrainingFixture::SetUpTestSuite();
    trained_ = run_for_all("train " + suite_path("run.toml"));
  }
  void SetUp() override {
    TrainingFixture::SetUp();
    std::ofstream questions(path("questions.jsonl"));
    for (int i = 0; i < 9; ++i) {
      questions << R"({"question": "line )" << i << R"(", "choices": ["of file", ";", "zzzz qq"], "answer": )" << i % 3
                << "}\n\n";
    }
  }
  std::string eval(const std::string& more) const { return "eval " + path("out/model") + " " + more; }
  nlohmann::json result_of(const std::string& arguments) const {
    const CommandResult result = run_fsdp(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  static inline std::string trained_;  // what the run printed
};

TEST_F(Eval, RanksGiveWhatOneGives) {
  const std::string arguments = eval("--json --context 64 --stride 24 --text " + path("text") + " --data " +
                                     path("data") + " --multiple-choice " + path("questions.jsonl"));
  const nlohmann::json alone = result_of(arguments);
  EXPECT_EQ(alone.at("text").at("documents"), 12);
  EXPECT_EQ(alone.at("multiple_choice").at("questions"), 9);
  for (const int ranks : {2, 3}) {
    const nlohmann::json several =
        result_of("launch --no-prefix --nproc " + std::to_string(ranks) + " -- " + arguments);
    for (const char* part : {"text", "data"}) {
      for (const char* count : {"tokens", "bytes", "documents"})
        EXPECT_EQ(several.at(part).at(count), alone.at(part).at(count)) << part;
      const double nats = alone.at(part).at("nats_per_token");
      EXPECT_NEAR(several.at(part).at("nats_per_token").get<double>(), nats, 1e-6 * nats) << part << ranks;
    }
    EXPECT_EQ(several.at("multiple_choice"), alone.at("multiple_choice"));
  }
}

// The trainer scores the same tokens of the held-out split, cut into sequences at other places.
TEST_F(Eval, AgreesWithTheLossOfTheTrainingRun) {
  const std::string mark = "held out after step 6: ";
  const size_t place = trained_.rfind(mark);
  ASSERT_NE(place, std::string::npos) << trained_;
  const size_t number = trained_.rfind(", ", trained_.find(" bits per byte", place));
  const double nats_per_byte = std::stod(trained_.substr(number + 2)) * std::log(2.0);
  const auto data = result_of(eval("--json --context 32 --data " + path("data"))).at("data");
  EXPECT_NEAR(data.at("bits_per_byte").get<double>() * std::log(2.0), nats_per_byte, 0.02 * nats_per_byte);
}

TEST_F(Eval, TextOfEveryFormAndLimits) {
  std::ofstream(path("two.txt")) << "first document\n<|end|>\nsecond one\n";
  std::ofstream(path("two.jsonl")) << "{\"body\": \"first document\"}\n{\"body\": \"second one\"}\n";
  const auto text = result_of(eval("--json --separator <|end|> --text " + path("two.txt"))).at("text");
  EXPECT_EQ(text.at("documents"), 2);
  const auto lines = result_of(eval("--json --text-field body --text " + path("two.jsonl"))).at("text");
  EXPECT_EQ(lines.at("documents"), 2);
  EXPECT_EQ(lines.at("bytes"), 24);
  EXPECT_EQ(lines.at("tokens"), 24) << "the begin token stands before each document";
  EXPECT_EQ(result_of(eval("--json --limit 1 --text-field body --text " + path("two.jsonl"))).at("text").at("bytes"),
            14);
  const CommandResult table =
      run_fsdp(eval("--limit 3 --text " + path("text") + " --multiple-choice " + path("questions.jsonl")));
  EXPECT_TRUE(contains(table.out, "bits per byte")) << table.out;
  EXPECT_TRUE(contains(table.out, "3 questions")) << table.out;
}

// Tokens of another tokenizer would all be known to the model, and mean something else.
TEST_F(Eval, DataOfAnotherTokenizerIsRefused) {
  const auto make_data = [&](const std::string& name, const std::string& special) {
    const std::string tokenizer = path(name + "_tokenizer");
    const CommandResult trained = run_fsdp("tokenizer train " + path("text") + " -o " + tokenizer +
                                           " --vocab-size 300 --special '" + special + "'");
    EXPECT_EQ(trained.exit_code, 0) << trained.err;
    const CommandResult prepared =
        run_fsdp("prepare " + path("text") + " --holdout 3 --tokenizer " + tokenizer + " -o " + path(name));
    EXPECT_EQ(prepared.exit_code, 0) << prepared.err;
  };
  make_data("one", "<|one|>");
  make_data("other", "<|other|>");
  const CommandResult model = run_fsdp(train("--data.path=" + path("one") + " --output.folder=" + path("of_one")));
  ASSERT_EQ(model.exit_code, 0) << model.err;
  const std::string eval = "eval " + path("of_one/model") + " --json --data ";
  EXPECT_GT(result_of(eval + path("one")).at("data").at("tokens"), 0);
  const CommandResult refused = run_fsdp(eval + path("other"));
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_TRUE(contains(refused.err, "vocabulary of tokenizer and model differ")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "<|other|>")) << refused.err;
}

TEST_F(Eval, MistakesAreToldInOneLine) {
  const auto expect_error = [&](const std::string& arguments, int exit_code, const std::string& part) {
    const CommandResult result = run_fsdp(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  };
  expect_error(eval(""), 2, "nothing to measure");
  expect_error(eval("--text " + path("none")), 3, "none");
  expect_error(eval("--data " + path("data") + " --split nonsense"), 3, "nonsense");
  expect_error(eval("--context 64 --stride 64 --text " + path("text")), 2, "stride: got 64, expected 1 to 63");
  expect_error(eval("--context 1000000 --text " + path("text")), 2, "context: got 1000000");
  std::ofstream(path("bad.jsonl")) << R"({"context": "x", "choices": ["a", "b"], "answer": 5})"
                                   << "\n";
  expect_error(eval("--multiple-choice " + path("bad.jsonl")), 3, "bad.jsonl:1: got answer 5");
  const CommandResult launched = launch_fsdp(2, eval("--multiple-choice " + path("bad.jsonl")));
  EXPECT_EQ(launched.exit_code, 3) << launched.err;
  EXPECT_TRUE(contains(launched.err, "got answer 5")) << launched.err;
}

}  // namespace
}  // namespace fsdp::app
