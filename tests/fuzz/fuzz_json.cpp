// JSON text. What is accepted is what nlohmann-json reads; what is refused and valid breaks one of our limits.
#include <algorithm>
#include <array>
#include <string>

#include "io/base/json.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::json;

constexpr io::JsonLimits kLimits = {.max_depth = 16, .max_values = 1024};

int depth(const Json& value) {
  int deepest = 0;
  for (const Json& inner : value) deepest = std::max(deepest, inner.is_structured() ? depth(inner) : 0);
  return deepest + 1;
}

bool names_a_limit(std::string_view message) {
  constexpr std::array<std::string_view, 4> kRules = {"a second time", "nested levels", "NUL byte", "values"};
  return std::any_of(kRules.begin(), kRules.end(), [&](auto rule) { return message.find(rule) != message.npos; });
}

void check_text(std::string_view text) {
  Json value;
  std::string reason;
  const bool accepted = accepts([&] {
    try {
      value = io::parse_json(text, "fuzz.json", kLimits);
    } catch (const io::Error& error) {
      reason = error.what();
      throw;
    }
  });
  if (!accepted) {
    FUZZ_REQUIRE(names_a_limit(reason) || !Json::accept(text));
    return;
  }
  FUZZ_REQUIRE(value == Json::parse(text));
  FUZZ_REQUIRE(!value.is_structured() || depth(value) <= kLimits.max_depth);
  FUZZ_REQUIRE(io::parse_json(value.dump(), "again") == value);
}

void check_string(std::string_view text) {
  std::string quoted;
  if (accepts([&] { quoted = io::json_string(text); })) FUZZ_REQUIRE(Json::parse(quoted) == text);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdp::fuzz::CostGate gate(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::check_text(text);
  fsdp::fuzz::check_string(text);
  return 0;
}
