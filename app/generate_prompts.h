#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat/format.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::app {

// What `fsdp generate` is asked to continue.
struct PromptOptions {
  std::vector<std::string> texts;
  std::string file;                   // .jsonl: {"prompt": text} or a conversation a line; else a prompt a line
  std::optional<std::string> chat;    // format of conversations; "auto": the tokenizer's
  std::string system;                 // first message of each conversation
  std::vector<std::string> messages;  // of a user: a conversation each
  std::vector<std::string> adapters;  // names that prompts may ask for
  std::string adapter = kNoAdapter;   // of those that ask for none

  static constexpr const char* kNoAdapter = "base";
};

struct Prompt {
  std::string text;          // as it is shown; of a conversation, the last message
  std::vector<int64_t> ids;  // that the model reads
  bool is_chat = false;      // the model shall answer
  int64_t adapter = -1;      // number of its name in PromptOptions::adapters; -1: the base
};

// The conversation format that `name` asks for. Throws Error(kUsage) for an unknown one, naming those that exist.
chat::Format chat_format(const tokenizer::Tokenizer& tokenizer, const std::string& name);

// The ids of a conversation, up to where the answer begins.
Prompt conversation_prompt(const tokenizer::Tokenizer& tokenizer, chat::Format format,
                           const std::vector<chat::Message>& messages);

// The number of an adapter's name; -1 for the base. Throws Error(kUsage) for an unknown one, naming those that exist.
int64_t adapter_number(const PromptOptions& options, const std::string& name);

// All prompts in order; without any, the start of a document. Throws Error(kUsage) or io::Error(kData), naming the
// line; Error(kUsage), too, for a system message that no prompt takes.
std::vector<Prompt> read_prompts(const PromptOptions& options, const tokenizer::Tokenizer& tokenizer);

}  // namespace fsdp::app
