#include "text/chat/message.h"

#include <algorithm>
#include <array>
#include <utility>

#include "io/base/json.h"

namespace fsdp::chat {
namespace {

using Json = nlohmann::json;

constexpr io::JsonLimits kLimits = {.max_depth = 32, .max_values = 1 << 20};

[[noreturn]] void refuse(const std::string& detail) { throw io::Error(io::ErrorKind::kData, "[chat] " + detail); }

std::string nth(size_t index) { return "message " + std::to_string(index + 1); }

// What people call the four roles.
constexpr std::array<std::pair<std::string_view, const char*>, 15> kRoles = {{{"system", "system"},
                                                                              {"developer", "system"},
                                                                              {"user", "user"},
                                                                              {"human", "user"},
                                                                              {"prompter", "user"},
                                                                              {"assistant", "assistant"},
                                                                              {"gpt", "assistant"},
                                                                              {"chatgpt", "assistant"},
                                                                              {"bot", "assistant"},
                                                                              {"model", "assistant"},
                                                                              {"tool", "tool"},
                                                                              {"function", "tool"},
                                                                              {"ipython", "tool"},
                                                                              {"observation", "tool"},
                                                                              {"function_response", "tool"}}};

std::string role_of(const std::string& name, const std::string& where) {
  const auto found = std::find_if(kRoles.begin(), kRoles.end(), [&](const auto& role) { return role.first == name; });
  if (found == kRoles.end()) {
    refuse(where + ": got the role " + io::in_quotes(name) + ", expected system, user, assistant or tool. Rename it.");
  }
  return found->second;
}

// Text, or a list of parts that are all text.
std::string content_of(const Json& value, const std::string& where) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    refuse(where + ": got a " + value.type_name() + " as its content, expected text. Repair or remove the chat.");
  }
  std::string content;
  for (const Json& part : value) {
    const auto text = part.is_object() ? part.find("text") : Json::const_iterator();
    if (!part.is_object() || part.value("type", Json("text")) != Json("text") || text == part.end() ||
        !text->is_string()) {
      refuse(where + R"(: got a part that is not {"type": "text", "text": ...}, expected text only. Remove the chat.)");
    }
    content += text->get<std::string>();
  }
  return content;
}

// The first of two keys that is there.
const Json* either(const Json& object, const char* first, const char* second) {
  for (const char* key : {first, second}) {
    if (const auto found = object.find(key); found != object.end()) {
      return &*found;
    }
  }
  return nullptr;
}

Message message_of(const Json& value, const std::string& where) {
  if (!value.is_object()) {
    refuse(where + ": got a " + value.type_name() + R"(, expected {"role": ..., "content": ...}. Repair the chat.)");
  }
  const Json* role = either(value, "role", "from");
  const Json* content = either(value, "content", "value");
  if (role == nullptr || !role->is_string() || content == nullptr) {
    refuse(where + R"(: got no text "role" ("from") or no "content" ("value"), expected both. Repair the chat.)");
  }
  for (const char* key : {"tool_calls", "function_call"}) {
    if (const auto calls = value.find(key); calls != value.end() && !calls->empty()) {
      refuse(where + ": got " + io::in_quotes(key) +
             ", which is not supported, expected text. Write the call into the content, or remove the chat.");
    }
  }
  return {role_of(role->get<std::string>(), where), content_of(*content, where)};
}

void append_list(const Json& list, const std::string& key, std::vector<Message>& messages) {
  if (!list.is_array() || list.empty()) {
    refuse(io::in_quotes(key) + ": got " + (list.is_array() ? "an empty list" : std::string("a ") + list.type_name()) +
           ", expected a list of messages. Repair or remove the chat.");
  }
  for (const Json& value : list) {
    messages.push_back(message_of(value, nth(messages.size())));
  }
}

std::string text_of(const Json& object, const char* key) {
  const Json& value = object.at(key);
  if (!value.is_string()) {
    refuse(io::in_quotes(key) + ": got a " + value.type_name() + ", expected text. Repair or remove the chat.");
  }
  return value.get<std::string>();
}

// The key "system" beside the turns.
void append_system(const Json& object, std::vector<Message>& messages) {
  const auto system = object.find("system");
  if (system != object.end() && system->is_string() && !system->get_ref<const std::string&>().empty()) {
    messages.push_back({"system", system->get<std::string>()});
  }
}

// A text of that role, or a list of messages.
void append_side(const Json& object, const char* key, const char* role, std::vector<Message>& messages) {
  if (object.at(key).is_array()) {
    append_list(object.at(key), key, messages);
  } else {
    messages.push_back({role, text_of(object, key)});
  }
}

void append_completion(const Json& object, std::vector<Message>& messages) {
  append_side(object, "prompt", "user", messages);
  append_side(object, "completion", "assistant", messages);
}

void append_instruction(const Json& object, std::vector<Message>& messages) {
  append_system(object, messages);
  std::string question = text_of(object, "instruction");
  if (const auto input = object.find("input"); input != object.end() && !input->is_null()) {
    const std::string text = text_of(object, "input");
    question += text.empty() ? "" : "\n" + text;
  }
  messages.push_back({"user", std::move(question)});
  messages.push_back({"assistant", text_of(object, "output")});
}

}  // namespace

std::vector<Message> parse_conversation(std::string_view json_line) {
  const Json object = io::parse_json(json_line, "conversation", kLimits);
  std::vector<Message> messages;
  const auto has = [&](const char* key) { return object.is_object() && object.contains(key); };
  if (has("messages")) {
    append_list(object.at("messages"), "messages", messages);
  } else if (has("conversations")) {
    append_system(object, messages);
    append_list(object.at("conversations"), "conversations", messages);
  } else if (has("prompt") && has("completion")) {
    append_completion(object, messages);
  } else if (has("instruction") && has("output")) {
    append_instruction(object, messages);
  } else {
    refuse(
        R"(conversation: got none of the known layouts, expected an object with "messages", "conversations", )"
        R"("prompt" and "completion", or "instruction" and "output". Convert the data; of "chosen" and "rejected" make pairs by --pairs.)");
  }
  return messages;
}

Preference parse_preference(std::string_view json_line) {
  const Json object = io::parse_json(json_line, "preference", kLimits);
  if (!object.is_object() || !object.contains("chosen") || !object.contains("rejected")) {
    refuse(R"(preference: got an object without "chosen" and "rejected", expected both, and "prompt" unless they )"
           R"(hold it. Convert the data, or leave --pairs out.)");
  }
  std::vector<Message> prompt;
  if (object.contains("prompt")) append_side(object, "prompt", "user", prompt);
  Preference pair{prompt, prompt};
  for (const auto& [key, messages] : {std::pair("chosen", &pair.chosen), {"rejected", &pair.rejected}}) {
    if (prompt.empty() && !object.at(key).is_array()) {
      refuse("preference: got " + io::in_quotes(key) +
             R"( without "prompt" that is no list, expected one with the prompt in it. Add "prompt".)");
    }
    append_side(object, key, "assistant", *messages);
  }
  return pair;
}

}  // namespace fsdp::chat
