#include "text/chat/family.h"

namespace fsdp::chat {

// Nothing but the contents, one after another: questions and answers of a base model, as prompt and completion.
void write_plain(const std::vector<Message>& messages, Purpose, Transcript& out) {
  const std::vector<int32_t> begin = out.tokenizer().encode("", tokenizer::SpecialTokens::kAdd);
  if (out.tokenizer().bos().has_value() && !begin.empty() && begin.front() == *out.tokenizer().bos()) {
    out.begin();
  }
  for (const Message& message : messages) {
    if (message.role == "assistant") {
      out.text(message.content, Transcript::Author::kModel);
      out.end(Transcript::Author::kModel);
    } else {
      out.text(message.content);
    }
  }
}

size_t require_turns(const std::vector<Message>& messages, std::string_view family) {
  const size_t first = messages.front().role == "system" ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const char* const expected = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      throw io::Error(io::ErrorKind::kData, "[chat] format " + std::string(family) + ": message " +
                                                std::to_string(i + 1) + ": got the role " +
                                                io::in_quotes(messages[i].role) + ", expected '" + expected +
                                                "': roles alternate after the system's. Remove the chat.");
    }
  }
  if (first == messages.size()) {
    throw io::Error(io::ErrorKind::kData, "[chat] format " + std::string(family) +
                                              ": got a system message alone, expected a question. Add one.");
  }
  return first;
}

}  // namespace fsdp::chat
