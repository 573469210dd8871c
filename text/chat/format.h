#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/message.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::chat {

// How a family of models writes a chat. Within a family, the tokenizer decides what its versions do differently (a
// default system message, blocks of thinking, [INST] as text or as a token): docs/chat.md.
enum class Format { kPlain, kChatML, kLlama2, kLlama3, kMistral, kSmolLM3 };

// "plain", "chatml", "llama2", "llama3", "mistral" or "smollm3".
std::optional<Format> find_format(std::string_view name);
std::string_view name_of(Format format);

// The format that the tokenizer's chat template uses; without a template, the one whose control tokens it has; kPlain
// if there are none. Throws Error(kUsage) if there is a template of another kind.
Format detect_format(const tokenizer::Tokenizer& tokenizer);

// A whole chat. `is_answer` is 1 at the ids that the model would have to write itself, the token that ends its turn
// included: the training loss is on them.
struct Rendered {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_answer;  // as many as ids
};

// Throws Error(kData) for a chat without an answer, with an empty one, or with roles in an order that the format does
// not know; Error(kUsage) if the tokenizer lacks the format's tokens. What messages contain becomes text, also where it
// reads like a special token.
Rendered render(const tokenizer::Tokenizer& tokenizer, Format format, const std::vector<Message>& messages);

// For generation: ends where the answer begins. The last message must not be the assistant's.
std::vector<int32_t> render_prompt(const tokenizer::Tokenizer& tokenizer, Format format,
                                   const std::vector<Message>& messages);

// The text that render() and render_prompt() turn into ids: what the family's Jinja template gives.
std::string render_text(const tokenizer::Tokenizer& tokenizer, Format format, const std::vector<Message>& messages);
std::string render_prompt_text(const tokenizer::Tokenizer& tokenizer, Format format,
                               const std::vector<Message>& messages);

// Each of these ends an answer.
std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, Format format);

}  // namespace fsdp::chat
