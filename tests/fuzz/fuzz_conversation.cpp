// A line of training chats. Accepted means: known roles, contents in UTF-8; written as "messages" it reads the same.
#include <algorithm>
#include <array>
#include <string>

#include "io/base/json.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "text/chat/message.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::json;

bool is_role(const std::string& name) {
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  return std::find(kRoles.begin(), kRoles.end(), name) != kRoles.end();
}

void check_line(std::string_view line) {
  std::vector<chat::Message> messages;
  if (!accepts([&] { messages = chat::parse_conversation(line); })) return;
  FUZZ_REQUIRE(!messages.empty());
  Json list = Json::array();
  for (const chat::Message& message : messages) {
    FUZZ_REQUIRE(is_role(message.role));
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  FUZZ_REQUIRE(chat::parse_conversation(Json{{"messages", list}}.dump()) == messages);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdp::fuzz::CostGate gate(size);
  fsdp::fuzz::check_line({reinterpret_cast<const char*>(data), size});
  return 0;
}
