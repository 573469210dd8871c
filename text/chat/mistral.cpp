#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

using Author = Transcript::Author;

enum class Version {
  kV1,        // 7B v0.1 and v0.2: [INST] is text
  kV3,        // 7B v0.3: [INST] is a control token of a SentencePiece vocabulary, with a space after it
  kV3Tekken,  // Nemo: the same in a byte-level vocabulary, without the space
};

Version version_of(const tokenizer::Tokenizer& tokenizer) {
  const std::optional<int32_t> control = tokenizer.id_of("[INST]");
  if (!control.has_value() || !tokenizer.is_special(*control)) {
    return Version::kV1;
  }
  return tokenizer.id_of("\xE2\x96\x81").has_value() ? Version::kV3 : Version::kV3Tekken;
}

// V1 tells the system's message with the first question, V3 with the last.
size_t question_with_system(const std::vector<Message>& messages, Version version) {
  if (messages.front().role != "system") {
    return messages.size();
  }
  size_t question = 1;
  for (size_t i = 1; i < messages.size() && version != Version::kV1; ++i) {
    question = messages[i].role == "user" ? i : question;
  }
  return question;
}

void write_question(const std::string& content, Version version, Transcript& out) {
  if (version == Version::kV1) {
    out.text(" [INST] " + content + " [/INST]");
    return;
  }
  out.control("[INST]");
  out.text((version == Version::kV3 ? " " : "") + content);
  out.control("[/INST]");
}

void write_answer(const std::string& content, Version version, Transcript& out) {
  switch (version) {
    case Version::kV1:
      out.text(" " + content, Author::kModel);
      break;
    case Version::kV3:
      out.text(" " + std::string(strip(content)), Author::kModel);
      break;
    case Version::kV3Tekken:
      out.text(content, Author::kModel);
      break;
  }
  out.end(Author::kModel);
}

}  // namespace

void write_mistral(const std::vector<Message>& messages, Purpose, Transcript& out) {
  const Version version = version_of(out.tokenizer());
  const size_t first = require_turns(messages, "mistral");
  const size_t with_system = question_with_system(messages, version);
  out.begin();
  for (size_t i = first; i < messages.size(); ++i) {
    if (messages[i].role == "assistant") {
      write_answer(messages[i].content, version, out);
    } else {
      const std::string system = i == with_system ? messages.front().content + "\n\n" : "";
      write_question(system + messages[i].content, version, out);
    }
  }
}

}  // namespace fsdp::chat
