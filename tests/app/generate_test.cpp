// `fsdp generate` as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class Generate : public TrainingFixture {
 protected:
  static void SetUpTestSuite() {
    TrainingFixture::SetUpTestSuite();
    run_for_all("train " + suite_path("run.toml"));
  }
  void SetUp() override {
    TrainingFixture::SetUp();
    std::ofstream(path("prompts.txt")) << "line\nof file\n\nline 12 of file 3;\nx\nyz\n";
  }
  std::string generate(const std::string& more) const {
    return "generate " + path("out/model") + " --max-tokens 24 " + more;
  }
};

TEST_F(Generate, PrintsThePromptAndItsContinuation) {
  const CommandResult result = run_fsdp(generate("--prompt line --temperature 2"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.rfind("line", 0), 0u) << result.out;
  EXPECT_TRUE(contains(result.err, "tokens/s")) << result.err;
  EXPECT_TRUE(contains(result.err, "first after")) << result.err;
  EXPECT_EQ(run_fsdp(generate("--prompt line --temperature 2")).out, result.out);
  EXPECT_NE(run_fsdp(generate("--prompt line --temperature 2 --seed 9")).out, result.out);
}

TEST_F(Generate, ManyPromptsInJsonAreThoseOfEachAlone) {
  const std::string options = "--json --temperature 1.5 --prompts-file " + path("prompts.txt");
  const CommandResult together = run_fsdp(generate(options));
  ASSERT_EQ(together.exit_code, 0) << together.err;
  const auto lines = json_lines(together.out);
  ASSERT_EQ(lines.size(), 5u);
  const std::vector<std::string> prompts = {"line", "of file", "line 12 of file 3;", "x", "yz"};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("index"), i);
    EXPECT_EQ(lines[i].at("prompt"), prompts[i]);
    EXPECT_EQ(lines[i].at("prompt_tokens"), prompts[i].size() + 1);
    EXPECT_EQ(lines[i].at("tokens"), lines[i].at("ids").size());
  }
  EXPECT_EQ(run_fsdp(generate(options + " --rows 1")).out, together.out);
  EXPECT_EQ(run_fsdp(generate(options + " --rows 2")).out, together.out);
}

TEST_F(Generate, RanksGiveWhatOneGives) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string options =
        generate("--json --temperature 0 --precision " + precision + " --prompts-file " + path("prompts.txt"));
    const CommandResult alone = run_fsdp(options);
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    for (const int ranks : {2, 3}) {
      const CommandResult several = run_fsdp("launch --no-prefix --nproc " + std::to_string(ranks) + " -- " + options);
      EXPECT_EQ(several.exit_code, 0) << several.err;
      EXPECT_EQ(several.out, alone.out) << precision << " " << ranks;
    }
  }
}

TEST_F(Generate, StopStringsEndTheText) {
  const CommandResult whole = run_fsdp(generate("--prompt line --temperature 0 --json"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::string text = json_lines(whole.out)[0].at("text");
  ASSERT_GE(text.size(), 12u);
  const std::string stop = text.substr(6, 3);
  const size_t first = text.find(stop);
  std::istringstream command(generate("--prompt line --temperature 0 --json --stop"));
  std::vector<std::string> words{FSDP_BINARY};
  for (std::string word; command >> word;) words.push_back(word);
  words.push_back(stop);  // it may have spaces
  const CommandResult cut = run_command(words);
  const auto line = json_lines(cut.out)[0];
  EXPECT_EQ(line.at("text"), text.substr(0, first));
  EXPECT_EQ(line.at("finish"), "stop_string");
}

TEST_F(Generate, EndTokensOfGenerationConfigEndTheText) {
  const std::string options = generate("--prompt line --temperature 0 --json");
  const std::vector<int64_t> ids = json_lines(run_fsdp(options).out)[0].at("ids");
  ASSERT_GE(ids.size(), 4u);
  const nlohmann::json config = {{"eos_token_id", {0, ids[3]}}};
  std::ofstream(path("out/model/generation_config.json")) << config.dump();
  const auto line = json_lines(run_fsdp(options).out)[0];
  EXPECT_EQ(line.at("finish"), "stop_id");
  const auto first = std::find(ids.begin(), ids.end(), ids[3]);
  EXPECT_EQ(line.at("text").get<std::string>().size(), static_cast<size_t>(first - ids.begin()));

  std::ofstream(path("out/model/generation_config.json")) << R"({"eos_token_id": [7, 999]})";
  const CommandResult refused = run_fsdp(options);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(contains(refused.err, "generation_config.json: eos_token_id: got 999, expected token ids below 259"))
      << refused.err;
}

TEST_F(Generate, AnswersMessages) {
  const CommandResult result = run_fsdp(generate("--chat plain --message Hello --system Be --json --temperature 0"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_lines(result.out).size(), 1u) << result.out;
  std::ofstream(path("chats.jsonl")) << R"({"messages":[{"role":"user","content":"Hello"}]})"
                                     << "\n"
                                     << R"({"prompt":"line"})"
                                     << "\n";
  const CommandResult file = run_fsdp(generate("--chat plain --json --prompts-file " + path("chats.jsonl")));
  EXPECT_EQ(file.exit_code, 0) << file.err;
  EXPECT_EQ(json_lines(file.out).size(), 2u) << file.out;
}

class GenerateMistakes : public Generate {
 protected:
  void expect_error(const std::string& arguments, int exit_code, const std::string& part) {
    const CommandResult result = run_fsdp(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
};

TEST_F(GenerateMistakes, AreToldInOneLine) {
  expect_error(generate("--prompt " + std::string(5000, 'x')), 2, "Shorten the prompt");
  expect_error("generate " + path("prompts.txt") + " --prompt x", 4, "got a file, expected a model folder");
  expect_error(generate("--top-p 0"), 2, "top-p: got 0");
  expect_error(generate("--min-p 7"), 2, "min-p: got 7");
  expect_error(generate("--rows 0"), 2, "rows at a time: got 0");
  expect_error(generate("--context 100000000"), 2, "context: got 100000000");
  expect_error(generate("--precision fp8"), 2, "fp8");
  expect_error(generate("--prompts-file " + path("none.txt")), 3, "none.txt");
  expect_error(generate("--chat nonsense --message a"), 2, "expected auto, plain");
  expect_error(generate("--chat plain --prompt a"), 2, "--message");
  expect_error(generate("--chat plain --json"), 2, "line by line");
  expect_error(generate("--prompt a --system Be"), 2, "--system: got it for texts to continue");
  expect_error(generate("--system Be --prompts-file " + path("prompts.txt")), 2, "Pass --message");
  std::ofstream(path("bad.jsonl")) << "{\"prompt\": \"a\"}\nnonsense\n";
  expect_error(generate("--prompts-file " + path("bad.jsonl")), 3, "bad.jsonl:2");
  const CommandResult launched = launch_fsdp(2, generate("--chat plain"));
  EXPECT_EQ(launched.exit_code, 2) << launched.err;
  EXPECT_TRUE(contains(launched.err, "expected one for a chat")) << launched.err;
}

}  // namespace
}  // namespace fsdp::app
