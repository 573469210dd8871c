#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace fsdp::chat {

// One turn of a chat. `role` is system, user, assistant or tool; `content` is UTF-8.
struct Message {
  std::string role;
  std::string content;

  bool operator==(const Message&) const = default;
};

// The messages of one JSON object in any of the layouts below; other keys are ignored. Layouts are looked for in this
// order:
//   {"messages": [{"role": ..., "content": ...}, ...]}           content: text, or a list of {"type": "text", "text":
//   ...}
//   {"conversations": [{"from": ..., "value": ...}, ...]}        ShareGPT: from human, gpt, system, tool, ...; "system"
//   {"prompt": ..., "completion": ...}                           two texts, or two lists as under "messages"
//   {"instruction": ..., "input": ..., "output": ...}            Alpaca: "input" may be absent or empty; "system"
// Throws Error(kData) for other layouts, unknown roles, calls of tools (they have no place in Message) and bad JSON.
std::vector<Message> parse_conversation(std::string_view json_line);

// Two chats that begin alike and end with an answer each, of which one is better.
struct Preference {
  std::vector<Message> chosen;
  std::vector<Message> rejected;
};

// Of one JSON object, as TRL has them; other keys are ignored:
//   {"prompt": ..., "chosen": ..., "rejected": ...}    three texts, or lists as under "messages", which may be mixed
//   {"chosen": [...], "rejected": [...]}               two lists that hold the prompt
// Throws Error(kData) as parse_conversation() does.
Preference parse_preference(std::string_view json_line);

}  // namespace fsdp::chat
