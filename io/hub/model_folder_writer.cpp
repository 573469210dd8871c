#include "io/hub/model_folder_writer.h"

#include <array>
#include <cstdio>
#include <utility>

#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/shape.h"

namespace fsdp::io {

namespace {

constexpr size_t kMaxShards = 99999;  // five digits in the name

Error write_error(const std::filesystem::path& folder, const std::string& detail) {
  return Error(ErrorKind::kUsage, "[write] " + in_quotes(folder.native()) + ": " + detail);
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text.data();
}

}  // namespace

ModelFolderWriter::ModelFolderWriter(std::filesystem::path folder, std::vector<TensorDeclaration> tensors,
                                     uint64_t max_shard_bytes)
    : folder_(std::move(folder)), shards_(1) {
  for (TensorDeclaration& tensor : tensors) add(std::move(tensor), max_shard_bytes);
  if (shards_.size() > kMaxShards)
    throw write_error(folder_, "got " + std::to_string(shards_.size()) + " shards, expected at most " +
                                   std::to_string(kMaxShards) + ". Choose a larger shard size.");
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i].file = shard_name(i, shards_.size());
}

void ModelFolderWriter::add(TensorDeclaration tensor, uint64_t max_shard_bytes) {
  const int64_t numel = checked_numel(tensor.shape).value_or(0);  // what does not fit is refused when it is declared
  const uint64_t bytes = static_cast<uint64_t>(numel) * item_size(tensor.dtype);
  if (max_shard_bytes > 0 && bytes > 0 && shard_bytes_ > 0 && shard_bytes_ + bytes > max_shard_bytes) {
    shards_.emplace_back();
    shard_bytes_ = 0;
  }
  if (!shard_of_.emplace(tensor.name, shards_.size() - 1).second)
    throw write_error(folder_, "tensor " + in_quotes(tensor.name) + ": got the name twice, expected different names.");
  shard_bytes_ += bytes;
  total_bytes_ += bytes;
  total_numel_ += numel;
  shards_.back().missing += numel;
  shards_.back().tensors.push_back(std::move(tensor));
}

void ModelFolderWriter::open(Shard& shard) const {
  if (shard.writer == nullptr)
    shard.writer = std::make_unique<SafetensorsWriter>(folder_ / shard.file, shard.tensors,
                                                       std::map<std::string, std::string>{{"format", "pt"}});
}

void ModelFolderWriter::write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data) {
  const auto found = shard_of_.find(std::string(name));
  if (found == shard_of_.end())
    throw write_error(folder_, "tensor " + in_quotes(name) + ": got an undeclared tensor, expected a declared one.");
  Shard& shard = shards_[found->second];
  if (num_elements == 0) return;
  if (shard.is_committed)
    throw write_error(folder_, "tensor " + in_quotes(name) + ": got elements a second time, expected each once.");
  open(shard);
  shard.writer->write(name, first_element, num_elements, data);
  shard.missing -= num_elements;
  if (shard.missing > 0) return;
  shard.writer->commit();
  shard.writer.reset();
  shard.is_committed = true;
}

void ModelFolderWriter::commit() {
  for (Shard& shard : shards_) {
    if (shard.is_committed) continue;
    open(shard);
    shard.writer->commit();  // which says what is missing
    shard.writer.reset();
    shard.is_committed = true;
  }
  if (shards_.size() > 1) write_index();
}

void ModelFolderWriter::write_index() const {
  nlohmann::json map = nlohmann::json::object();
  for (const auto& [name, shard] : shard_of_) map[name] = shards_[shard].file;
  const nlohmann::json index = {{"metadata", {{"total_parameters", total_numel_}, {"total_size", total_bytes_}}},
                                {"weight_map", map}};
  write_file_atomically(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace fsdp::io
