#include "fsdp/checkpoint/unclaimed.h"

#include <nlohmann/json.hpp>

#include "fsdp/comm/collectives.h"

namespace fsdp::checkpoint {

std::set<std::string> unclaimed(const World& world, const std::set<std::string>& not_asked_here) {
  std::set<std::string> names = not_asked_here;
  for (const std::string& text : gather_strings(world, nlohmann::json(not_asked_here).dump())) {
    const std::set<std::string> theirs = nlohmann::json::parse(text);
    std::erase_if(names, [&](const std::string& name) { return theirs.count(name) == 0; });
  }
  return names;
}

}  // namespace fsdp::checkpoint
