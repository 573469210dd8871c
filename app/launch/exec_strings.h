#pragma once

#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace fsdp::app {

// The environment as "NAME=value", with `changes`: value by name.
inline std::vector<std::string> child_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> all;
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  return all;
}

// What exec() takes, as long as `texts` lives: ends with a null pointer.
inline std::vector<char*> exec_pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace fsdp::app
