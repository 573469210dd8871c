#include "io/hub/model_folder.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/base/json.h"

namespace fsdp::io {

namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

Error model_error(const std::filesystem::path& path, const std::string& detail) {
  return Error(ErrorKind::kModel, "[model] " + in_quotes(path.native()) + ": " + detail);
}

bool is_pickle(const std::filesystem::path& path) {
  const std::string extension = path.extension().native();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt" ||
         extension == ".distcp";
}

Error pickle_error(const std::filesystem::path& path, const std::string& name) {
  return model_error(path, "got pickled weights " + in_quotes(name) +
                               ", expected safetensors. Pickle can run code when read and is refused; save the model "
                               "again with safe_serialization=True.");
}

// Why a folder that has neither of the two files is no model.
Error no_weights_error(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / "dataset.json", ignored)) {
    return model_error(folder,
                       "got a data set, expected a model. Name the folder of a model, such as runs/train/model.");
  }
  for (const auto& item : std::filesystem::directory_iterator(folder, ignored)) {
    if (is_pickle(item.path())) return pickle_error(folder, item.path().filename().native());
  }
  const std::filesystem::path of_run = folder / "model";
  const bool is_run = std::filesystem::exists(of_run / "model.safetensors", ignored);
  return model_error(folder,
                     "got a folder without model.safetensors and model.safetensors.index.json, expected one of "
                     "them. " +
                         (is_run ? "Did you mean " + in_quotes(of_run.native()) + "?" : "Check the path."));
}

// The index as shard -> names of its tensors, with the names checked.
std::map<std::string, std::vector<std::string>> shards_of(const std::filesystem::path& path,
                                                          const nlohmann::json& index) {
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    throw model_error(path, "got no \"weight_map\" object, expected tensor names and their files.");
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (!is_plain_file_name(name)) {
      throw model_error(path, "tensor " + in_quotes(tensor) + ": got the file " +
                                  in_quotes(file.is_string() ? name : file.dump().substr(0, 40)) +
                                  ", expected a plain file name beside the index.");
    }
    if (is_pickle(name)) throw pickle_error(path, name);
    shards[name].push_back(tensor);
  }
  return shards;
}

std::optional<uint64_t> declared_size(const nlohmann::json& index) {
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || !metadata->is_object()) return std::nullopt;
  const auto total = metadata->find("total_size");
  if (total == metadata->end() || !total->is_number_unsigned()) return std::nullopt;
  return total->get<uint64_t>();
}

}  // namespace

ModelFolder ModelFolder::open(const std::filesystem::path& path) {
  ModelFolder model;
  model.path_ = path;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    if (std::filesystem::exists(path / kSingleName, error)) {
      model.add_file(path / kSingleName);
    } else if (std::filesystem::exists(path / kIndexName, error)) {
      model.add_index(path / kIndexName);
    } else {
      throw no_weights_error(path);
    }
  } else if (!std::filesystem::exists(status)) {
    throw model_error(path, "got nothing there, expected a model folder or a .safetensors file. Check the path.");
  } else if (path.extension() == ".safetensors") {
    model.add_file(path);
  } else if (is_pickle(path)) {
    throw pickle_error(path, path.filename().native());
  } else {
    throw model_error(path, "got a file, expected a model folder or a .safetensors file. Check the path.");
  }
  model.finish();
  return model;
}

void ModelFolder::add_file(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(path)));
  const SafetensorsFile* file = files_.back().get();
  for (const TensorEntry& entry : file->tensors()) tensors_.emplace(entry.name, Location{file, &entry});
}

void ModelFolder::add_index(const std::filesystem::path& path) {
  const nlohmann::json index = read_json_file(path, {.kind = ErrorKind::kModel});
  const auto shards = shards_of(path, index);
  declared_bytes_ = declared_size(index);
  for (const auto& [name, tensors] : shards) {
    const std::filesystem::path shard = path.parent_path() / name;
    std::error_code error;
    if (!std::filesystem::exists(shard, error)) {
      throw model_error(path, "got no shard " + in_quotes(name) + ", expected it beside the index. Download it again.");
    }
    files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(shard)));
    const SafetensorsFile* file = files_.back().get();
    for (const std::string& tensor : tensors) {
      const TensorEntry* entry = file->find(tensor);
      if (entry == nullptr) {
        throw model_error(path, "tensor " + in_quotes(tensor) + ": got no such tensor in shard " + in_quotes(name) +
                                    ", expected it there. The index and the shards do not belong together.");
      }
      tensors_.emplace(tensor, Location{file, entry});
    }
  }
}

void ModelFolder::finish() {
  for (const auto& [name, location] : tensors_) {
    names_.push_back(name);
    total_bytes_ += location.entry->end - location.entry->begin;
  }
  std::sort(names_.begin(), names_.end());
}

std::optional<ModelFolder::Location> ModelFolder::find(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) return std::nullopt;
  return found->second;
}

void ModelFolder::read(std::string_view name, int64_t first_element, int64_t num_elements, void* out) const {
  const std::optional<Location> location = find(name);
  if (!location) {
    throw model_error(path_, "got no tensor " + in_quotes(name) + ", expected one of its " +
                                 std::to_string(names_.size()) + " tensors. Check the model type.");
  }
  location->file->read(*location->entry, first_element, num_elements, out);
}

}  // namespace fsdp::io
