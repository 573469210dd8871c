#include "text/chat/format.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/chat/encoding.h"
#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

constexpr std::array<std::pair<std::string_view, Format>, 6> kNames = {{{"plain", Format::kPlain},
                                                                        {"chatml", Format::kChatML},
                                                                        {"llama2", Format::kLlama2},
                                                                        {"llama3", Format::kLlama3},
                                                                        {"mistral", Format::kMistral},
                                                                        {"smollm3", Format::kSmolLM3}}};

[[noreturn]] void refuse_chat(const std::string& detail) { throw io::Error(io::ErrorKind::kData, "[chat] " + detail); }

// What every format needs.
void check(const std::vector<Message>& messages, Purpose purpose) {
  if (messages.empty()) {
    refuse_chat("conversation: got no messages, expected at least one. Remove the chat.");
  }
  size_t num_answers = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_answer = messages[i].role == "assistant";
    num_answers += is_answer ? 1 : 0;
    if (is_answer && strip(messages[i].content).empty()) {
      refuse_chat("message " + std::to_string(i + 1) + ": got an empty answer, expected text. Remove the chat.");
    }
  }
  if (purpose == Purpose::kTraining && num_answers == 0) {
    refuse_chat("conversation: got " + std::to_string(messages.size()) +
                " message(s) and none of the assistant, expected an answer to learn. Remove the chat.");
  }
  if (purpose == Purpose::kPrompt && messages.back().role == "assistant") {
    refuse_chat("conversation: got an answer as the last message, expected a question to answer. Remove the answer.");
  }
}

Transcript write(const tokenizer::Tokenizer& tokenizer, Format format, const std::vector<Message>& messages,
                 Purpose purpose) {
  check(messages, purpose);
  Transcript out(tokenizer, name_of(format));
  switch (format) {
    case Format::kPlain:
      write_plain(messages, purpose, out);
      break;
    case Format::kChatML:
      write_chatml(messages, purpose, out);
      break;
    case Format::kLlama2:
      write_llama2(messages, purpose, out);
      break;
    case Format::kLlama3:
      write_llama3(messages, purpose, out);
      break;
    case Format::kMistral:
      write_mistral(messages, purpose, out);
      break;
    case Format::kSmolLM3:
      write_smollm3(messages, purpose, out);
      break;
  }
  return out;
}

bool has_special(const tokenizer::Tokenizer& tokenizer, std::string_view token) {
  const std::optional<int32_t> id = tokenizer.id_of(token);
  return id.has_value() && tokenizer.is_special(*id);
}

std::optional<Format> format_of_template(const std::string& jinja) {
  const auto has = [&](std::string_view text) { return jinja.find(text) != std::string::npos; };
  if (has("<|im_start|>") && !has("<|im_sep|>")) {
    return has("Reasoning Mode: ") ? Format::kSmolLM3 : Format::kChatML;
  }
  if (has("<|start_header_id|>") && has("<|eot_id|>")) {
    return Format::kLlama3;
  }
  if (has("[INST]")) {
    return has("<<SYS>>") ? Format::kLlama2 : Format::kMistral;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Format> find_format(std::string_view name) {
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.first == name; });
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

std::string_view name_of(Format format) {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == format; })->first;
}

Format detect_format(const tokenizer::Tokenizer& tokenizer) {
  if (!tokenizer.chat_template().empty()) {
    if (const std::optional<Format> format = format_of_template(tokenizer.chat_template())) {
      return *format;
    }
    throw io::Error(io::ErrorKind::kUsage,
                    "[chat] format: got a tokenizer whose chat template is none of the known kinds, expected ChatML, "
                    "Llama 2, Llama 3, Mistral or SmolLM3. Name the format: plain, chatml, llama2, llama3, mistral or "
                    "smollm3.");
  }
  if (has_special(tokenizer, "<|im_start|>") && has_special(tokenizer, "<|im_end|>")) {
    return Format::kChatML;
  }
  if (has_special(tokenizer, "<|start_header_id|>")) {
    return Format::kLlama3;
  }
  return has_special(tokenizer, "[INST]") ? Format::kMistral : Format::kPlain;
}

Rendered render(const tokenizer::Tokenizer& tokenizer, Format format, const std::vector<Message>& messages) {
  return encode(write(tokenizer, format, messages, Purpose::kTraining));
}

std::vector<int32_t> render_prompt(const tokenizer::Tokenizer& tokenizer, Format format,
                                   const std::vector<Message>& messages) {
  return encode(write(tokenizer, format, messages, Purpose::kPrompt)).ids;
}

std::string render_text(const tokenizer::Tokenizer& tokenizer, Format format, const std::vector<Message>& messages) {
  return write(tokenizer, format, messages, Purpose::kTraining).str();
}

std::string render_prompt_text(const tokenizer::Tokenizer& tokenizer, Format format,
                               const std::vector<Message>& messages) {
  return write(tokenizer, format, messages, Purpose::kPrompt).str();
}

std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, Format format) {
  std::vector<int32_t> ids;
  const auto add = [&](std::optional<int32_t> id) {
    if (id.has_value() && std::find(ids.begin(), ids.end(), *id) == ids.end()) {
      ids.push_back(*id);
    }
  };
  switch (format) {
    case Format::kChatML:
    case Format::kSmolLM3:
      add(control_id(tokenizer, "<|im_end|>", name_of(format)));
      break;
    case Format::kLlama3:
      add(control_id(tokenizer, "<|eot_id|>", name_of(format)));
      add(tokenizer.id_of("<|eom_id|>"));
      add(tokenizer.id_of("<|end_of_text|>"));
      break;
    case Format::kPlain:
    case Format::kLlama2:
    case Format::kMistral:
      break;
  }
  add(tokenizer.eos());
  return ids;
}

}  // namespace fsdp::chat
