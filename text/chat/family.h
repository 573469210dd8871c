#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat/message.h"
#include "text/chat/transcript.h"

namespace fsdp::chat {

// Whole chats are for training; a prompt ends where the answer begins.
enum class Purpose { kTraining, kPrompt };

// Each writes the messages as the family's published Jinja template does (docs/chat.md names the versions). The
// messages were checked by require_known_order(). Throws Error(kData) for what the family cannot say, Error(kUsage) if
// the tokenizer lacks its tokens.
void write_plain(const std::vector<Message>& messages, Purpose purpose, Transcript& out);
void write_chatml(const std::vector<Message>& messages, Purpose purpose, Transcript& out);
void write_llama2(const std::vector<Message>& messages, Purpose purpose, Transcript& out);
void write_llama3(const std::vector<Message>& messages, Purpose purpose, Transcript& out);
void write_mistral(const std::vector<Message>& messages, Purpose purpose, Transcript& out);
void write_smollm3(const std::vector<Message>& messages, Purpose purpose, Transcript& out);

// A system message, if any, comes first and then user and assistant in turn: what some families demand. Returns the
// index of the first turn after the system message.
size_t require_turns(const std::vector<Message>& messages, std::string_view family);

// What Python's str.strip(), .rstrip() and .lstrip("\n") leave: white space by Unicode's definition.
std::string_view strip(std::string_view text);
std::string_view strip_end(std::string_view text);
std::string_view strip_leading_newlines(std::string_view text);
std::string_view strip_trailing_newlines(std::string_view text);
std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace fsdp::chat
