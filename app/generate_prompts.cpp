#include "app/generate_prompts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "io/base/json.h"

namespace fsdp::app {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

std::vector<int64_t> to_ids(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

Prompt text_prompt(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  Prompt prompt{text, to_ids(tokenizer.encode(text, tokenizer::SpecialTokens::kAdd)), /*is_chat=*/false};
  if (prompt.ids.empty() && tokenizer.bos()) prompt.ids = {*tokenizer.bos()};
  if (prompt.ids.empty()) {
    throw Error(ErrorCode::kUsage,
                "[generate] prompt: got no text, expected some: this tokenizer has no token for the "
                "start of a document. Pass --prompt.");
  }
  return prompt;
}

bool ends_with_jsonl(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".json"); }

}  // namespace

chat::Format chat_format(const tokenizer::Tokenizer& tokenizer, const std::string& name) {
  if (name == "auto") return chat::detect_format(tokenizer);
  const auto format = chat::find_format(name);
  if (format) return *format;
  throw Error(ErrorCode::kUsage, "[generate] --chat: got " + io::in_quotes(name) +
                                     ", expected auto, plain, chatml, llama2, llama3, mistral or smollm3.");
}

Prompt conversation_prompt(const tokenizer::Tokenizer& tokenizer, chat::Format format,
                           const std::vector<chat::Message>& messages) {
  return {messages.back().content, to_ids(chat::render_prompt(tokenizer, format, messages)), /*is_chat=*/true};
}

int64_t adapter_number(const PromptOptions& options, const std::string& name) {
  if (name == PromptOptions::kNoAdapter) return -1;
  const auto found = std::find(options.adapters.begin(), options.adapters.end(), name);
  if (found != options.adapters.end()) return found - options.adapters.begin();
  std::string known = PromptOptions::kNoAdapter;
  for (const std::string& each : options.adapters) known += ", " + each;
  throw Error(ErrorCode::kUsage, "[generate] adapter: got " + io::in_quotes(name) + ", expected one of " + known +
                                     ". Name it with --adapter NAME=FOLDER.");
}

namespace {

// Reads prompts of one kind after another.
class Reader {
 public:
  Reader(const PromptOptions& options, const tokenizer::Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  std::vector<Prompt> read() {
    for (const std::string& text : options_.texts) prompts_.push_back(text_prompt(tokenizer_, text));
    for (const std::string& message : options_.messages) add_conversation({{"user", message}});
    if (!options_.file.empty()) read_file();
    if (prompts_.empty()) prompts_.push_back(text_prompt(tokenizer_, ""));
    check_system();
    for (Prompt& prompt : prompts_) {
      if (!asked_.contains(&prompt - prompts_.data())) prompt.adapter = adapter_number(options_, options_.adapter);
    }
    return std::move(prompts_);
  }

 private:
  void check_system() const {
    const bool has_chat =
        std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) { return prompt.is_chat; });
    if (options_.system.empty() || has_chat) return;
    throw Error(ErrorCode::kUsage,
                "[generate] --system: got it for texts to continue, expected a conversation. Pass --message, or leave "
                "--system out.");
  }

  void add_conversation(std::vector<chat::Message> messages) {
    const bool has_system = !messages.empty() && messages.front().role == "system";
    if (!options_.system.empty() && !has_system) messages.insert(messages.begin(), {"system", options_.system});
    if (!format_) format_ = chat_format(tokenizer_, options_.chat.value_or("auto"));
    prompts_.push_back(conversation_prompt(tokenizer_, *format_, messages));
  }

  void add_json(const std::string& line, const std::string& origin) {
    const nlohmann::json json = io::parse_json(line, origin, {.max_bytes = kMaxLineBytes});
    add_prompt(json, line, origin);
    if (!json.is_object() || !json.contains("adapter")) return;
    const nlohmann::json& name = json["adapter"];
    try {
      prompts_.back().adapter = adapter_number(options_, name.is_string() ? name.get<std::string>() : name.dump());
    } catch (const Error& error) {
      throw Error(ErrorCode::kUsage, std::string(error.what()) + " It is in " + origin + ".");
    }
    asked_.insert(static_cast<ptrdiff_t>(prompts_.size()) - 1);
  }

  void add_prompt(const nlohmann::json& json, const std::string& line, const std::string& origin) {
    const bool is_prompt = json.is_object() && json.contains("prompt") && json["prompt"].is_string();
    if (is_prompt && !json.contains("completion")) {
      prompts_.push_back(text_prompt(tokenizer_, json["prompt"].get<std::string>()));
      return;
    }
    std::vector<chat::Message> messages = chat::parse_conversation(line);
    while (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
    if (messages.empty())
      throw io::Error(io::ErrorKind::kData, "[generate] " + origin + ": got a conversation without a user's message.");
    add_conversation(std::move(messages));
  }

  void read_file() {
    std::ifstream file(options_.file);
    if (!file) {
      throw io::Error(io::ErrorKind::kData,
                      "[generate] " + io::in_quotes(options_.file) + ": cannot be read. Name a file of prompts.");
    }
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      const std::string origin = options_.file + ":" + std::to_string(number);
      try {
        if (ends_with_jsonl(options_.file))
          add_json(line, origin);
        else if (options_.chat)
          add_conversation({{"user", line}});
        else
          prompts_.push_back(text_prompt(tokenizer_, line));
      } catch (const io::Error& error) {
        if (std::string(error.what()).find(origin) != std::string::npos) throw;
        throw io::Error(error.kind(), "[generate] " + origin + ": " + error.what());
      }
    }
  }

  const PromptOptions& options_;
  const tokenizer::Tokenizer& tokenizer_;
  std::optional<chat::Format> format_;
  std::vector<Prompt> prompts_;
  std::set<ptrdiff_t> asked_;  // prompts that named their adapter
};

}  // namespace

std::vector<Prompt> read_prompts(const PromptOptions& options, const tokenizer::Tokenizer& tokenizer) {
  return Reader(options, tokenizer).read();
}

}  // namespace fsdp::app
