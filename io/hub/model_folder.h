#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace fsdp::io {

// The weights of a model as Hugging Face stores them: `model.safetensors`, or `model.safetensors.index.json` and its
// shards. Move-only; reads are thread-safe. Pickled weights are never opened.
class ModelFolder {
 public:
  // Where a tensor lives; both pointers stay valid as long as the ModelFolder.
  struct Location {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };

  // `path` is a folder or one .safetensors file. Opens and validates every shard; every tensor of the index must be in
  // the shard the index says. Shard names must be plain file names (symbolic links are followed: the cache of Hugging
  // Face is made of them). Throws Error(kModel) naming the file.
  static ModelFolder open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  std::optional<Location> find(std::string_view name) const;
  // Bytes of all tensors in names().
  uint64_t total_bytes() const { return total_bytes_; }
  // What the index claims total_bytes() to be. Published models exist where it is wrong, so it is told and not
  // enforced.
  std::optional<uint64_t> declared_bytes() const { return declared_bytes_; }

  // As SafetensorsFile::read. Throws Error(kModel) if the tensor does not exist.
  void read(std::string_view name, int64_t first_element, int64_t num_elements, void* out) const;

 private:
  void add_file(const std::filesystem::path& path);
  void add_index(const std::filesystem::path& path);
  void finish();

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Location> tensors_;
  std::vector<std::string> names_;
  uint64_t total_bytes_ = 0;
  std::optional<uint64_t> declared_bytes_;
};

}  // namespace fsdp::io
