// Chats against the published Jinja templates, run by transformers (tests/data/make_chat_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/io/temporary_folder.h"
#include "text/chat/format.h"

namespace fsdp::chat {
namespace {

using nlohmann::json;
using tokenizer::Tokenizer;

const json& golden() {
  static const json content =
      json::parse(io::read_text(std::filesystem::path(FSDP_SOURCE_DIR) / "tests/data/chat.json"));
  return content;
}

enum class Template { kKept, kRemoved };

Tokenizer load_family(const std::string& name, Template chat_template = Template::kKept) {
  const io::TemporaryFolder folder;
  const json& family = golden().at(name);
  json config = family.at("config");
  if (chat_template == Template::kRemoved) {
    config.erase("chat_template");
  }
  io::write_text(folder / "tokenizer.json", family.at("tokenizer").dump());
  io::write_text(folder / "tokenizer_config.json", config.dump());
  return Tokenizer::load(folder.path());
}

std::vector<Message> messages_of(const json& golden_case) {
  return parse_conversation(json{{"messages", golden_case.at("messages")}}.dump());
}

Format format_of(const std::string& family) {
  return *find_format(golden().at(family).at("format").get<std::string>());
}

std::string mask_text(const Rendered& rendered) {
  std::string text;
  for (const uint8_t is_answer : rendered.is_answer) {
    text += is_answer == 1 ? '1' : '0';
  }
  return text;
}

// The answers' tokens as text.
std::string learnt_text(const Tokenizer& tokenizer, const Rendered& rendered) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < rendered.ids.size(); ++i) {
    if (rendered.is_answer[i] == 1) {
      ids.push_back(rendered.ids[i]);
    }
  }
  return tokenizer.decode(ids);
}

class ChatFamily : public testing::TestWithParam<std::string> {};

TEST_P(ChatFamily, EqualsTheTemplate) {
  const Tokenizer tokenizer = load_family(GetParam());
  const Format format = format_of(GetParam());
  for (const auto& [name, expected] : golden().at(GetParam()).at("cases").items()) {
    SCOPED_TRACE(GetParam() + ", " + name);
    const std::vector<Message> messages = messages_of(expected);
    if (expected.contains("text")) {
      EXPECT_EQ(render_text(tokenizer, format, messages), expected.at("text").get<std::string>());
      const Rendered rendered = render(tokenizer, format, messages);
      EXPECT_EQ(rendered.ids, expected.at("ids").get<std::vector<int32_t>>());
      EXPECT_EQ(mask_text(rendered), expected.at("mask").get<std::string>());
    }
    if (expected.contains("prompt")) {
      EXPECT_EQ(render_prompt_text(tokenizer, format, messages), expected.at("prompt").get<std::string>());
      EXPECT_EQ(render_prompt(tokenizer, format, messages), expected.at("prompt_ids").get<std::vector<int32_t>>());
    }
  }
}

TEST_P(ChatFamily, IsDetected) { EXPECT_EQ(detect_format(load_family(GetParam())), format_of(GetParam())); }

// Training and generation meet: what the model learns to write follows on what generation gives it to read, and ends
// with what generation stops at.
TEST_P(ChatFamily, AnswersContinuePromptsAndStop) {
  const Tokenizer tokenizer = load_family(GetParam());
  const Format format = format_of(GetParam());
  std::vector<Message> messages = {{"system", "Be brief."}, {"user", "Who?"}};
  const std::vector<int32_t> prompt = render_prompt(tokenizer, format, messages);
  messages.push_back({"assistant", "A cat."});
  const Rendered whole = render(tokenizer, format, messages);
  ASSERT_GT(whole.ids.size(), prompt.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), whole.ids.begin()));
  const size_t num_answer = std::accumulate(whole.is_answer.begin(), whole.is_answer.end(), size_t{0});
  EXPECT_EQ(std::count(whole.is_answer.begin(), whole.is_answer.begin() + static_cast<int64_t>(prompt.size()), 1), 0);
  const std::vector<int32_t> stops = stop_ids(tokenizer, format);
  EXPECT_NE(std::find(stops.begin(), stops.end(), whole.ids[prompt.size() + num_answer - 1]), stops.end());
}

// Whoever writes control tokens into a message must not take over the other side's turn.
TEST_P(ChatFamily, ControlTokensInAMessageAreText) {
  const Tokenizer tokenizer = load_family(GetParam());
  const Format format = format_of(GetParam());
  const json& added = golden().at(GetParam()).at("tokenizer").at("added_tokens");
  std::string attack = "Hi";
  for (const json& token : added) {
    attack += token.at("special") == true ? token.at("content").get<std::string>() + "assistant\n" : "";
  }
  attack += "end";
  const auto num_special = [&](const std::vector<int32_t>& ids) {
    return std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.is_special(id); });
  };
  const Rendered harmless = render(tokenizer, format, {{"user", "Hi"}, {"assistant", "Hello"}});
  const Rendered attacked = render(tokenizer, format, {{"user", attack}, {"assistant", "Hello"}});
  EXPECT_EQ(num_special(attacked.ids), num_special(harmless.ids));
  EXPECT_EQ(learnt_text(tokenizer, attacked), learnt_text(tokenizer, harmless));
  EXPECT_NE(tokenizer.decode(attacked.ids).find(attack), std::string::npos) << tokenizer.decode(attacked.ids);
  const Rendered answered = render(tokenizer, format, {{"user", "Hi"}, {"assistant", attack}});
  EXPECT_EQ(num_special(answered.ids), num_special(harmless.ids));
}

INSTANTIATE_TEST_SUITE_P(Published, ChatFamily,
                         testing::Values("chatml", "qwen2", "qwen2.5", "qwen3", "smollm2", "smollm3", "llama2",
                                         "llama3", "llama3.1", "mistral-v1", "mistral-v3", "mistral-v3-tekken"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

TEST(Chat, PlainIsPromptAndCompletion) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  const Rendered rendered = render(tokenizer, Format::kPlain, {{"user", "ab"}, {"assistant", "c"}});
  EXPECT_EQ(rendered.ids, (std::vector<int32_t>{256, 'a', 'b', 'c', 257}));
  EXPECT_EQ(rendered.is_answer, (std::vector<uint8_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(render_prompt(tokenizer, Format::kPlain, {{"user", "ab"}}), (std::vector<int32_t>{256, 'a', 'b'}));
  EXPECT_EQ(stop_ids(tokenizer, Format::kPlain), (std::vector<int32_t>{257}));
  EXPECT_EQ(detect_format(tokenizer), Format::kPlain);
}

TEST(Chat, WithoutATemplateTheTokensTell) {
  EXPECT_EQ(detect_format(load_family("qwen2", Template::kRemoved)), Format::kChatML);
  EXPECT_EQ(detect_format(load_family("llama3", Template::kRemoved)), Format::kLlama3);
  EXPECT_EQ(detect_format(load_family("mistral-v3", Template::kRemoved)), Format::kMistral);
  EXPECT_EQ(detect_format(load_family("llama2", Template::kRemoved)), Format::kPlain);
  // No family's default system message without its template.
  const Tokenizer bare = load_family("qwen2", Template::kRemoved);
  EXPECT_EQ(render_prompt_text(bare, Format::kChatML, {{"user", "Hi"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Chat, NamesAreFound) {
  for (const char* name : {"plain", "chatml", "llama2", "llama3", "mistral", "smollm3"}) {
    ASSERT_TRUE(find_format(name).has_value()) << name;
    EXPECT_EQ(name_of(*find_format(name)), name);
  }
  EXPECT_FALSE(find_format("vicuna").has_value());
}

// The template of v0.3 drops the system's message here; Mistral's own library puts it before the last question.
TEST(Chat, MistralV3KeepsTheSystemMessageInTraining) {
  const Tokenizer tokenizer = load_family("mistral-v3");
  EXPECT_EQ(render_text(tokenizer, Format::kMistral,
                        {{"system", "S"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}),
            "<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST] d</s>");
}

class ChatErrors : public testing::Test {
 protected:
  void expect(const std::string& family, const std::vector<Message>& messages, io::ErrorKind kind, const char* part) {
    const Tokenizer tokenizer = load_family(family);
    const Format format = format_of(family);
    const io::Caught error = io::catch_error([&] { render(tokenizer, format, messages); });
    EXPECT_TRUE(error.says(part)) << family << ": " << error.text;
    EXPECT_EQ(error.kind, kind);
    EXPECT_TRUE(error.is_one_line());
  }
};

TEST_F(ChatErrors, NameWhatIsMissing) {
  expect("qwen2", {}, io::ErrorKind::kData, "got no messages");
  expect("qwen2", {{"user", "Hi"}}, io::ErrorKind::kData, "none of the assistant");
  expect("qwen2", {{"user", "Hi"}, {"assistant", " \n"}}, io::ErrorKind::kData, "message 2: got an empty answer");
  expect("llama2", {{"assistant", "Hi"}}, io::ErrorKind::kData, "message 1: got the role 'assistant', expected 'user'");
  expect("mistral-v1", {{"user", "a"}, {"user", "b"}, {"assistant", "c"}}, io::ErrorKind::kData,
         "message 2: got the role 'user', expected 'assistant'");
  expect("llama2", {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"tool", "c"}}, io::ErrorKind::kData,
         "message 4: got the role 'tool'");
  expect("smollm3", {{"user", "a"}, {"system", "s"}, {"assistant", "b"}}, io::ErrorKind::kData,
         "system message at place 2");
}

TEST_F(ChatErrors, NameTheFormatThatTheTokenizerCannotWrite) {
  const Tokenizer llama = load_family("llama3");
  const io::Caught error = io::catch_error([&] {
    render(llama, Format::kChatML, {{"user", "Hi"}, {"assistant", "Hello"}});
  });
  EXPECT_EQ(error.kind, io::ErrorKind::kUsage);
  EXPECT_TRUE(error.says("format chatml: got a tokenizer without '<|im_start|>'")) << error.text;
  const io::Caught prompt = io::catch_error([&] {
    render_prompt(llama, Format::kLlama3, {{"user", "Hi"}, {"assistant", "Hello"}});
  });
  EXPECT_TRUE(prompt.says("got an answer as the last message")) << prompt.text;
}

TEST_F(ChatErrors, AnUnknownTemplateIsNotGuessed) {
  const io::TemporaryFolder folder;
  io::write_text(folder / "tokenizer.json", golden().at("chatml").at("tokenizer").dump());
  io::write_text(folder / "tokenizer_config.json", R"({"chat_template":"<|user|>{{ messages[0] }}"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const io::Caught error = io::catch_error([&] { detect_format(tokenizer); });
  EXPECT_EQ(error.kind, io::ErrorKind::kUsage);
  EXPECT_TRUE(error.says("none of the known kinds")) << error.text;
}

}  // namespace
}  // namespace fsdp::chat
