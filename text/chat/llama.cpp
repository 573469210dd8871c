#include "io/base/json.h"
#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

using Author = Transcript::Author;

void write_header(std::string_view role, Transcript& out) {
  out.control("<|start_header_id|>");
  out.text(role);
  out.control("<|end_header_id|>");
  out.text("\n\n");
}

void write_llama_turn(std::string_view role, std::string_view content, Transcript& out) {
  const Author author = role == "assistant" ? Author::kModel : Author::kOthers;
  write_header(role, out);
  out.text(content, author);
  out.control("<|eot_id|>", author);
}

}  // namespace

void write_llama2(const std::vector<Message>& messages, Purpose, Transcript& out) {
  const size_t first = require_turns(messages, "llama2");
  for (size_t i = first; i < messages.size(); ++i) {
    std::string content = messages[i].content;
    if (messages[i].role == "assistant") {
      // Both spaces belong to the answer: the model has to write them, the last one in order to end.
      out.text(" " + std::string(strip(content)) + " ", Author::kModel);
      out.end(Author::kModel);
      continue;
    }
    if (i == first && first > 0) {
      content = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n" + content;
    }
    out.begin();
    out.text("[INST] " + std::string(strip(content)) + " [/INST]");
  }
}

// Since 3.1 there is always a system turn, with dates, and results of tools are JSON from "ipython".
void write_llama3(const std::vector<Message>& messages, Purpose purpose, Transcript& out) {
  const bool has_dates = out.tokenizer().chat_template().find("Cutting Knowledge Date") != std::string::npos;
  size_t first = 0;
  out.begin();
  if (has_dates) {
    first = messages.front().role == "system" ? 1 : 0;
    const std::string_view system = first == 1 ? strip(messages.front().content) : "";
    write_llama_turn("system",
                     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n" + std::string(system), out);
  }
  for (size_t i = first; i < messages.size(); ++i) {
    if (has_dates && messages[i].role == "tool") {
      write_llama_turn("ipython", io::json_string(messages[i].content), out);
    } else {
      write_llama_turn(messages[i].role, strip(messages[i].content), out);
    }
  }
  if (purpose == Purpose::kPrompt) {
    write_header("assistant", out);
  }
}

}  // namespace fsdp::chat
