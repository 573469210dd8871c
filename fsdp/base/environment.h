#pragma once

#include <cstdlib>
#include <map>
#include <string>

#include "fsdp/base/check.h"

namespace fsdp {

// What an environment variable chooses by name; `otherwise` where it is not set or empty. Throws Error(kUsage) for any
// other text, naming the choices.
template <class Value>
Value choice_of(const char* variable, const std::map<std::string, Value>& values, Value otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == 0) return otherwise;
  const auto found = values.find(text);
  if (found != values.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "" : ", ") + name;
  FSDP_THROW(kUsage, "[init] ", variable, ": got '", text, "', expected one of: ", names, ".");
}

}  // namespace fsdp
