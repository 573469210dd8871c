// The verb `tokenizer`, as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/app/command.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {
namespace {

class TokenizerVerb : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  CommandResult train(const std::string& options) {
    io::write_text(folder_ / "a.txt", "the cat and the hat and the bat\nthe cat sat\n");
    io::write_text(folder_ / "b.jsonl", R"({"text":"the dog and the cat"})"
                                        "\n");
    return run_fsdp("tokenizer train " + path("a.txt") + " " + path("b.jsonl") + " -o " + path("tok") + " " + options);
  }
  void expect_error(const CommandResult& result, int exit_code, const std::string& part) {
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }

  io::TemporaryFolder folder_;
};

TEST_F(TokenizerVerb, TrainsEncodesAndDecodes) {
  const CommandResult trained = train("--vocab-size 265 --special <|end|> --special <|pad|> --pad <|pad|>");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("2 files, 2 documents"), std::string::npos) << trained.out;
  EXPECT_NE(trained.out.find("265 tokens"), std::string::npos) << trained.out;
  const auto config = nlohmann::json::parse(io::read_text(path("tok") + "/tokenizer_config.json"));
  EXPECT_EQ(config.at("eos_token"), "<|end|>");
  EXPECT_EQ(config.at("pad_token"), "<|pad|>");

  const CommandResult ids = run_fsdp("tokenizer encode " + path("a.txt") + " --tokenizer " + path("tok"));
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  io::write_text(folder_ / "ids", ids.out);
  const CommandResult text = run_fsdp("tokenizer decode " + path("ids") + " --tokenizer " + path("tok"));
  EXPECT_EQ(text.out, io::read_text(path("a.txt")));
  const CommandResult tokens = run_fsdp("tokenizer encode " + path("a.txt") + " --tokens --tokenizer " + path("tok"));
  EXPECT_EQ(std::count(tokens.out.begin(), tokens.out.end(), '\n'),
            std::count(ids.out.begin(), ids.out.end(), ' ') + 1);
  const CommandResult stats = run_fsdp("tokenizer encode " + path("a.txt") + " --stats --tokenizer bytes");
  EXPECT_NE(stats.out.find("44 bytes, 44 tokens, 1.000 bytes per token"), std::string::npos) << stats.out;
}

TEST_F(TokenizerVerb, ShowsChats) {
  const std::string chats = path("chats.jsonl");
  io::write_text(chats, R"({"prompt":"2+2=","completion":"4"})"
                        "\n"
                        R"({"messages":[{"role":"user","content":"Hi"}]})"
                        "\n");
  const CommandResult shown = run_fsdp("tokenizer chat " + chats + " --tokenizer bytes --tokens");
  EXPECT_NE(shown.out.find("0\t61\t=\n1\t52\t4\n1\t257\t"), std::string::npos) << shown.out;
  expect_error(shown, 3, "chats.jsonl:2: ");
  EXPECT_NE(shown.err.find("none of the assistant"), std::string::npos) << shown.err;
  expect_error(run_fsdp("tokenizer chat " + chats + " --tokenizer bytes --format chatml"), 2, "without '<|im_start|>'");
  expect_error(run_fsdp("tokenizer chat " + chats + " --tokenizer bytes --format vicuna"), 2, "got vicuna");
}

TEST_F(TokenizerVerb, SaysWhatIsWrong) {
  expect_error(run_fsdp("tokenizer"), 2, "train | encode | decode | chat");
  expect_error(run_fsdp("tokenizer chain"), 2, "got chain");
  expect_error(train("--vocab-size 256"), 2, "got 256, expected 257");
  expect_error(train("--vocab-size 300 --pattern words"), 2, "got words, expected gpt2, llama3 or digits");
  expect_error(run_fsdp("tokenizer train " + path("none") + " -o x --vocab-size 300"), 3, "none");
  ASSERT_EQ(train("--vocab-size 300").exit_code, 0);
  expect_error(train("--vocab-size 300"), 2, "holds a tokenizer already");
  EXPECT_EQ(train("--vocab-size 300 --overwrite").exit_code, 0);
  io::write_text(folder_ / "ids", "1 2 x");
  expect_error(run_fsdp("tokenizer decode " + path("ids") + " --tokenizer " + path("tok")), 3,
               "byte offset 4: got 'x'");
  io::write_text(folder_ / "ids", "999999");
  expect_error(run_fsdp("tokenizer decode " + path("ids") + " --tokenizer " + path("tok")), 3,
               "expected an id from 0 to");
  expect_error(run_fsdp("tokenizer encode " + path("gone") + " --tokenizer " + path("tok")), 3, "cannot be read");
  io::write_text(folder_ / "latin", "caf\xE9");
  expect_error(run_fsdp("tokenizer encode " + path("latin") + " --tokenizer " + path("tok")), 3, "offset 3");
}

}  // namespace
}  // namespace fsdp::app
