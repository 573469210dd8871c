#include "train/generate/samples.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fsdp::train {
namespace {

using Prompts = std::vector<std::string>;

TEST(Samples, PromptsAreSeparatedByBars) {
  EXPECT_EQ(split_prompts(""), Prompts{""});
  EXPECT_EQ(split_prompts("Once|"), (Prompts{"Once", ""}));
  EXPECT_EQ(split_prompts("a b|c\nd"), (Prompts{"a b", "c\nd"}));
}

TEST(Samples, NothingThatATerminalObeysIsPrinted) {
  EXPECT_EQ(printable("a\nb\t\x1b[2J\x7f"), "a\\nb\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\x9b31m")
      << "CSI as one code point";
  EXPECT_EQ(printable("\xc3\xa9\xe2\x82\xac"), "\xc3\xa9\xe2\x82\xac");
}

TEST(Samples, OneLineOfJson) {
  const std::string line = to_json(7, {"a\nb", "c\"d"});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["prompt"], "a\nb");
  EXPECT_EQ(json["text"], "c\"d");
  EXPECT_NO_THROW(to_json(1, {"\xff", ""})) << "a prompt that is no UTF-8";
}

TEST(Samples, WhenAndWithWhat) {
  SampleConfig config;
  EXPECT_FALSE(SampleWriter(config, 1, std::nullopt).is_due(0));
  config.every_steps = 5;
  const SampleWriter writer(config, 1, tokenizer::Tokenizer::bytes());
  EXPECT_FALSE(writer.is_due(0));
  EXPECT_FALSE(writer.is_due(4));
  EXPECT_TRUE(writer.is_due(5));
  EXPECT_THROW(SampleWriter(config, 1, std::nullopt), Error);
}

}  // namespace
}  // namespace fsdp::train
