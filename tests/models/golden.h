// Reading of the golden sets: tests/data, and the fixtures where they exist. Both have one layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder.h"

namespace fsdp::models {

using Tensors = std::map<std::string, at::Tensor>;

// Every tensor of a safetensors file.
Tensors read_tensors(const std::filesystem::path& file);

// A model of the set in `folder` with fp32 parameters; `config` replaces the one in the folder.
Decoder load_golden(const std::filesystem::path& folder, const std::filesystem::path& config = {});

// The roots of the golden sets that exist.
std::vector<std::filesystem::path> golden_roots();

// Folders <root>/<kind>/* of all roots that hold `file`, sorted: a test parameter each.
std::vector<std::filesystem::path> golden_folders(const std::string& kind, const std::string& file);

// "data_smollm3_mini" for tests/data/models/smollm3-mini: a valid test name.
std::string test_name(const std::filesystem::path& folder);

// Largest absolute difference; 0 for empty tensors.
double largest_difference(const at::Tensor& a, const at::Tensor& b);

// The same relative to the largest entry of `expected`.
double relative_difference(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace fsdp::models
