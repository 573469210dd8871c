// Which keys of a config.json mean something here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::models {

// Settings of related families that change the maths: only the neutral value is accepted.
struct NeutralKey {
  std::string_view key;
  nlohmann::json neutral;
};
const std::vector<NeutralKey>& neutral_keys();

// Keys of the object that are neither read, nor neutral, nor known to be of no effect on what the model computes.
std::vector<std::string> find_unknown_keys(const nlohmann::json& object);

}  // namespace fsdp::models
