#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint_manifest.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::testing {

// The tensors of a checkpoint, whole, by name.
using LogicalTensors = std::map<std::string, torch::Tensor>;

inline torch::ScalarType torch_dtype_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::U8:
      return torch::kByte;
    case io::DType::I8:
      return torch::kChar;
    case io::DType::I64:
      return torch::kLong;
    case io::DType::BF16:
      return torch::kBFloat16;
    case io::DType::F32:
      return torch::kFloat;
    default:
      throw std::logic_error("a dtype that these tests do not use");
  }
}

// Put together from the manifest and the files, by names: the offsets that the library reads are not used.
inline LogicalTensors read_logical_tensors(const std::filesystem::path& folder) {
  const io::CheckpointManifest manifest = io::read_manifest(folder);
  std::vector<io::SafetensorsFile> files;
  for (const io::CheckpointFile& file : manifest.files) files.push_back(io::SafetensorsFile::open(folder / file.name));
  LogicalTensors tensors;
  for (const io::CheckpointTensor& stored : manifest.tensors) {
    const torch::Tensor whole = torch::empty(stored.shape, torch_dtype_of(stored.dtype));
    auto* bytes = static_cast<char*>(whole.data_ptr());
    int64_t done = 0;
    for (const io::CheckpointPart& part : stored.parts) {
      const std::string name = stored.name + "[" + std::to_string(part.begin) + ":" + std::to_string(part.end) + "]";
      const io::SafetensorsFile& file = files.at(part.file);
      const io::TensorEntry* entry = file.find(name);
      if (entry == nullptr || entry->dtype != stored.dtype || entry->numel() != part.end - part.begin) {
        throw std::runtime_error("no entry " + name);
      }
      file.read(*entry, 0, entry->numel(), bytes + part.begin * static_cast<int64_t>(io::item_size(stored.dtype)));
      done += entry->numel();
    }
    if (done != whole.numel()) throw std::runtime_error("parts of " + stored.name + " do not make it up");
    tensors[stored.name] = whole;
  }
  return tensors;
}

// Same names, same bits; the generators of random numbers are another matter.
inline void expect_same_state(const LogicalTensors& actual, const LogicalTensors& expected) {
  const auto is_random = [](const std::string& name) { return name.rfind("random/", 0) == 0; };
  for (const auto& [name, tensor] : expected) {
    if (is_random(name)) continue;
    const auto found = actual.find(name);
    if (found == actual.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(found->second.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::equal(found->second, tensor)) << name;
  }
  for (const auto& [name, tensor] : actual) EXPECT_TRUE(is_random(name) || expected.count(name) > 0) << name;
}

}  // namespace fsdp::testing
