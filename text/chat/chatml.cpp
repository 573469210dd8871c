#include <optional>

#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

using Author = Transcript::Author;

// What the families that share the format do differently; read off the tokenizer's own template.
struct Dialect {
  enum class Kind {
    kTurns,          // Qwen 2, SmolLM2: every role is a turn
    kToolResponses,  // Qwen 2.5: results of tools are inside a turn of the user
    kThinking,       // Qwen 3: besides, the last answer has a block <think>, earlier ones lose theirs
  };
  Kind kind = Kind::kTurns;
  std::string default_system;  // written where the chat has no system message; "" if none
};

// The text between `begin` and the next `quote`, without escapes; nothing if it does not hold "<|im_end|>".
std::optional<std::string> literal_turn(std::string_view text, char quote) {
  std::string turn;
  for (size_t i = 0; i < text.size() && text[i] != quote; ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size();
    i += escaped ? 1 : 0;
    turn += escaped && text[i] == 'n' ? '\n' : text[i];
    if (turn.ends_with("<|im_end|>")) {
      return turn.substr(0, turn.size() - 10);
    }
  }
  return std::nullopt;
}

// The system message that a template has as a literal: '<|im_start|>system\nYou are ...<|im_end|>\n'.
std::string find_default_system(std::string_view jinja) {
  constexpr std::string_view kStart = "<|im_start|>system";
  for (size_t at = jinja.find(kStart); at != std::string_view::npos; at = jinja.find(kStart, at + 1)) {
    std::string_view rest = jinja.substr(at + kStart.size());
    const size_t newline = rest.starts_with("\n") ? 1 : rest.starts_with("\\n") ? 2 : 0;
    const char quote = at == 0 ? '\0' : jinja[at - 1];
    if (newline == 0 || (quote != '\'' && quote != '"')) {
      continue;
    }
    if (auto turn = literal_turn(rest.substr(newline), quote)) {
      return *turn;
    }
  }
  return "";
}

Dialect dialect_of(const std::string& jinja) {
  Dialect dialect;
  dialect.default_system = find_default_system(jinja);
  if (jinja.find("<tool_response>") != std::string::npos) {
    dialect.kind =
        jinja.find("reasoning_content") == std::string::npos ? Dialect::Kind::kToolResponses : Dialect::Kind::kThinking;
  }
  return dialect;
}

void write_turn(std::string_view role, std::string_view content, Transcript& out) {
  const Author author = role == "assistant" ? Author::kModel : Author::kOthers;
  out.control("<|im_start|>");
  out.text(role);
  out.text("\n");
  out.text(content, author);
  out.control("<|im_end|>", author);
  out.text("\n");
}

bool is_tool_response(std::string_view content) {
  return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
}

// Index of the last question a person asked; of the last message if there is none.
size_t last_query(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !is_tool_response(messages[i].content)) {
      return i;
    }
  }
  return messages.size() - 1;
}

// An answer of Qwen 3: thinking is kept only after the last question, and there is a block for it in the last message.
std::string answer_after_thinking(const std::vector<Message>& messages, size_t index) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  std::string_view content = messages[index].content;
  std::string_view thinking;
  if (const size_t first = content.find(kClose); first != std::string_view::npos) {
    thinking = strip_trailing_newlines(content.substr(0, first));
    const size_t open = thinking.rfind(kOpen);
    thinking = strip_leading_newlines(open == std::string_view::npos ? thinking : thinking.substr(open + kOpen.size()));
    content = strip_leading_newlines(content.substr(content.rfind(kClose) + kClose.size()));
  }
  const bool is_last = index + 1 == messages.size();
  if (index <= last_query(messages) || (!is_last && thinking.empty())) {
    return std::string(content);
  }
  return "<think>\n" + std::string(strip_trailing_newlines(thinking)) + "\n</think>\n\n" +
         std::string(strip_leading_newlines(content));
}

// Results of tools that follow one another share a turn of the user.
void write_tool_response(const std::vector<Message>& messages, size_t index, Transcript& out) {
  if (index == 0 || messages[index - 1].role != "tool") {
    out.control("<|im_start|>");
    out.text("user");
  }
  out.text("\n<tool_response>\n");
  out.text(messages[index].content);
  out.text("\n</tool_response>");
  if (index + 1 == messages.size() || messages[index + 1].role != "tool") {
    out.control("<|im_end|>");
    out.text("\n");
  }
}

}  // namespace

void write_chatml(const std::vector<Message>& messages, Purpose purpose, Transcript& out) {
  const Dialect dialect = dialect_of(out.tokenizer().chat_template());
  if (!dialect.default_system.empty() && messages.front().role != "system") {
    write_turn("system", dialect.default_system, out);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "tool" && dialect.kind != Dialect::Kind::kTurns) {
      write_tool_response(messages, i, out);
    } else if (message.role == "assistant" && dialect.kind == Dialect::Kind::kThinking) {
      write_turn(message.role, answer_after_thinking(messages, i), out);
    } else {
      write_turn(message.role, message.content, out);
    }
  }
  if (purpose == Purpose::kPrompt) {
    out.control("<|im_start|>");
    out.text("assistant\n");
  }
}

}  // namespace fsdp::chat
