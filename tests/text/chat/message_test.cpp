#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"
#include "text/chat/message.h"

namespace fsdp::chat {
namespace {

using Messages = std::vector<Message>;

io::Caught parse_error(std::string_view line) {
  return io::catch_error([&] { parse_conversation(line); });
}

TEST(Conversation, AllLayoutsGiveTheSameMessages) {
  const Messages expected = {{"user", "2 + 2?"}, {"assistant", "4 \xF0\x9F\x98\x80"}};
  for (const char* line : {
           R"({"messages":[{"role":"user","content":"2 + 2?"},{"role":"assistant","content":"4 \ud83d\ude00"}]})",
           R"({"id":7,"messages":[{"role":"user","content":[{"type":"text","text":"2 + "},{"type":"text","text":"2?"}]},
               {"role":"assistant","content":"4 \ud83d\ude00","tool_calls":null,"weight":1}],"prompt":"2 + 2?"})",
           R"({"conversations":[{"from":"human","value":"2 + 2?"},{"from":"gpt","value":"4 \ud83d\ude00"}]})",
           R"({"conversations":[{"role":"user","content":"2 + 2?"},{"role":"assistant","content":"4 \ud83d\ude00"}]})",
           R"({"prompt":"2 + 2?","completion":"4 \ud83d\ude00"})",
           R"({"prompt":[{"role":"user","content":"2 + 2?"}],
               "completion":[{"role":"assistant","content":"4 \ud83d\ude00"}]})",
           R"({"instruction":"2 + 2?","input":"","output":"4 \ud83d\ude00"})",
           R"({"instruction":"2 + 2?","output":"4 \ud83d\ude00","input":null})",
       }) {
    EXPECT_EQ(parse_conversation(line), expected) << line;
  }
}

TEST(Conversation, WhatBelongsToAQuestionIsKept) {
  EXPECT_EQ(parse_conversation(R"({"instruction":"Add","input":"1, 2","output":"3"})").front(),
            (Message{"user", "Add\n1, 2"}));
  const Messages with_system = {{"system", "Be kind"}, {"user", "Hi"}, {"assistant", "Hello"}};
  EXPECT_EQ(
      parse_conversation(
          R"({"system":"Be kind","conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"}]})"),
      with_system);
  EXPECT_EQ(parse_conversation(R"({"system":"Be kind","instruction":"Hi","output":"Hello"})"), with_system);
  EXPECT_EQ(
      parse_conversation(R"({"conversations":[{"from":"system","value":""},{"from":"observation","value":"3"}]})"),
      (Messages{{"system", ""}, {"tool", "3"}}));
}

TEST(Conversation, ErrorsNameTheMessageInOneLine) {
  const auto expect = [](const char* line, const char* part) {
    const io::Caught error = parse_error(line);
    EXPECT_TRUE(error.says(part)) << line << "\n" << error.text;
    EXPECT_EQ(error.kind, io::ErrorKind::kData) << line;
    EXPECT_TRUE(error.is_one_line()) << error.text;
  };
  expect(R"({"messages":[{"role":"user","content":"a"},{"role":"wizard","content":"b"}]})",
         "message 2: got the role 'wizard'");
  expect(R"({"messages":[{"role":"user","content":null}]})", "message 1: got a null as its content");
  expect(R"({"messages":[{"role":"user"}]})", "message 1: got no text \"role\"");
  expect(R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1"}]}]})", "'tool_calls'");
  expect(R"({"messages":[{"role":"user","content":[{"type":"image","url":"x"}]}]})", "expected text only");
  expect(R"({"messages":[]})", "'messages': got an empty list");
  expect(R"({"messages":"hi"})", "'messages': got a string");
  expect(R"({"messages":["hi"]})", "message 1: got a string");
  expect(R"({"text":"hi"})", "none of the known layouts");
  expect(R"({"prompt":"hi"})", "none of the known layouts");
  expect(R"(["messages"])", "none of the known layouts");
  expect(R"({"prompt":1,"completion":"x"})", "'prompt': got a number");
  expect(R"({"messages":)", "'conversation':1:");
  expect("{\"messages\":\"\xFF\"}", "UTF-8");
  expect(R"({"messages":[],"messages":[]})", "a second time");
  expect("", "'conversation'");
}

TEST(Preference, LayoutsOfTrl) {
  const std::vector<Message> chosen{{"user", "q"}, {"assistant", "a"}}, rejected{{"user", "q"}, {"assistant", "b"}};
  for (const char* line :
       {R"({"prompt": "q", "chosen": "a", "rejected": "b", "score": 1})",
        R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}],)"
        R"( "rejected": [{"role": "assistant", "content": "b"}]})",
        R"({"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"})",
        R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],)"
        R"( "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})"}) {
    const Preference pair = parse_preference(line);
    EXPECT_EQ(pair.chosen, chosen) << line;
    EXPECT_EQ(pair.rejected, rejected) << line;
  }
  for (const auto& [line, part] : {std::pair(R"({"prompt": "q", "completion": "a"})", "\"chosen\" and \"rejected\""),
                                   {R"({"chosen": "a", "rejected": "b"})", "without \"prompt\""},
                                   {R"([1])", "\"chosen\" and \"rejected\""}}) {
    const io::Caught error = io::catch_error([&, line = line] { parse_preference(line); });
    EXPECT_EQ(error.kind, io::ErrorKind::kData);
    EXPECT_TRUE(error.says(part)) << error.text;
  }
}

}  // namespace
}  // namespace fsdp::chat
