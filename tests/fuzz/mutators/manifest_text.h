#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/fuzz/mutators/engine.h"

namespace fsdp::fuzz {

// Recomputes the digest of a manifest, or adds one: else every change would end at the first check.
std::string with_digest(std::string text);
std::string with_digest(const nlohmann::ordered_json& manifest);

// A changed manifest; most results have a digest that fits, many also parts that fit the shapes.
std::string mutate_manifest(const std::string& text, size_t max_size, Random& random);

}  // namespace fsdp::fuzz
