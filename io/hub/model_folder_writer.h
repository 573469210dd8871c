#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace fsdp::io {

// Hugging Face's default limit of a file of weights before transformers 5.
inline constexpr uint64_t kDefaultShardBytes = 5'000'000'000;

// Writes weights as Hugging Face stores them: `model.safetensors`, or, where one file would exceed a limit,
// `model-00001-of-00003.safetensors` and so on with `model.safetensors.index.json`. Tensors arrive in pieces and any
// order; a shard is open from its first piece to its last. Not thread-safe.
class ModelFolderWriter {
 public:
  // Tensors go to shards in this order; a shard holds at most `max_shard_bytes` of tensors (0: no limit), or a single
  // larger one. Throws Error(kUsage) as SafetensorsWriter does.
  ModelFolderWriter(std::filesystem::path folder, std::vector<TensorDeclaration> tensors, uint64_t max_shard_bytes);

  // As SafetensorsWriter::write.
  void write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data);

  // Checks that every element was written, and writes the index if there is one.
  void commit();

  size_t num_files() const { return shards_.size(); }

 private:
  struct Shard {
    std::string file;
    std::vector<TensorDeclaration> tensors;
    int64_t missing = 0;  // elements yet to be written
    bool is_committed = false;
    std::unique_ptr<SafetensorsWriter> writer;
  };
  void add(TensorDeclaration tensor, uint64_t max_shard_bytes);
  void open(Shard& shard) const;
  void write_index() const;

  std::filesystem::path folder_;
  std::vector<Shard> shards_;
  uint64_t shard_bytes_ = 0;  // of the last shard
  uint64_t total_bytes_ = 0;
  int64_t total_numel_ = 0;
  std::unordered_map<std::string, size_t> shard_of_;
};

}  // namespace fsdp::io
