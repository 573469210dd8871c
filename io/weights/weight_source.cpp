#include "io/weights/weight_source.h"

#include <algorithm>
#include <system_error>

#include "io/base/error.h"
#include "io/base/json.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/dcp/dcp_chunks.h"
#include "io/dcp/dcp_metadata.h"
#include "io/hub/model_folder.h"
#include "io/weights/adapter.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kCopyPieceBytes = uint64_t{16} << 20;

// What `fsdp` or Hugging Face keep beside the weights.
constexpr const char* kCompanions[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "fsdp_tokenizer.json",
};

bool can_be_found(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool has_weights(const std::filesystem::path& path) {
  return can_be_found(path / "model.safetensors") || can_be_found(path / "model.safetensors.index.json");
}

bool is_adapter_folder(const std::filesystem::path& path) {
  return can_be_found(path / kAdapterConfigFile) && !has_weights(path);
}

class ModelSource final : public WeightSource {
 public:
  explicit ModelSource(const std::filesystem::path& path)
      : WeightSource(path), model_(ModelFolder::open(is_adapter_folder(path) ? path / kAdapterWeightsFile : path)) {
    for (const std::string& name : model_.names()) {
      const TensorEntry& entry = *model_.find(name)->entry;
      tensors_.push_back({name, entry.shape, entry.dtype, std::string(io::name(entry.dtype))});
    }
    description_ = "Hugging Face model";
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) return;
    if (is_adapter_folder(path)) {
      description_ = "LoRA adapter";
      adapter_config_ = read_json_file(path / kAdapterConfigFile, {.kind = ErrorKind::kModel});
    }
    if (std::filesystem::exists(path / "config.json", error)) {
      config_ = read_json_file(path / "config.json", {.kind = ErrorKind::kModel});
    }
    companions_ = companion_files(path);
  }

  void read(const std::vector<size_t>& wanted, const PieceSink& sink) const override {
    std::vector<char> piece;
    for (const size_t index : in_file_order(wanted)) {
      const WeightTensor& tensor = tensors_[index];
      const int64_t step = static_cast<int64_t>(kCopyPieceBytes / item_size(*tensor.dtype));
      const int64_t numel = tensor.numel();
      for (int64_t first = 0; first < numel; first += step) {
        const int64_t count = std::min(step, numel - first);
        piece.resize(static_cast<size_t>(count) * item_size(*tensor.dtype));
        model_.read(tensor.name, first, count, piece.data());
        sink(index, first, count, piece.data());
      }
    }
  }

 private:
  std::vector<size_t> in_file_order(std::vector<size_t> wanted) const {
    const auto place = [&](size_t index) {
      const ModelFolder::Location location = *model_.find(tensors_[index].name);
      return std::pair(location.file->path(), location.entry->begin);
    };
    std::sort(wanted.begin(), wanted.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
    return wanted;
  }

  const ModelFolder model_;
};

// Why a folder is no source, where we can say better than "no weights".
void check_for_near_misses(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return;
  const auto refuse = [&](const std::string& detail) {
    throw Error(ErrorKind::kModel, "[source] " + in_quotes(path.native()) + ": " + detail);
  };
  for (const auto& item : std::filesystem::directory_iterator(path, error)) {
    const std::string name = item.path().filename().native();
    if (name.starts_with("step-") && can_be_found(item.path() / kManifestName)) {
      refuse("got a folder of checkpoints, expected one of them. Pass " + in_quotes((path / name).native()) +
             " or another.");
    }
    if (name.starts_with("__") && name.ends_with(kDcpMetadataName)) {
      refuse("got metadata of single ranks (" + in_quotes(name) +
             "), expected one .metadata. Save with the coordination of ranks, which is the default of DCP.");
    }
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) {
      refuse("got shards of HuggingFaceStorageWriter, expected one model. Save it with enable_consolidation=True.");
    }
    if (item.path().extension() == ".distcp" && !can_be_found(path / kDcpMetadataName)) {
      refuse("got files of DCP without .metadata, expected it. The save was not finished, or a file is missing.");
    }
  }
  if (can_be_found(path / "checkpoints") && !can_be_found(path / "config.json")) {
    refuse("got the output of a run, expected one checkpoint. Pass its folder checkpoints/step-N.");
  }
}

}  // namespace

int64_t WeightTensor::numel() const { return checked_numel(shape).value_or(0); }

std::unique_ptr<WeightSource> open_model_source(const std::filesystem::path& path) {
  return std::make_unique<ModelSource>(path);
}

std::unique_ptr<WeightSource> open_weight_source(const std::filesystem::path& path) {
  if (can_be_found(path / kDcpMetadataName)) return open_dcp_source(path);
  if (can_be_found(path / kManifestName)) return open_checkpoint_source(path);
  if (!has_weights(path) && !is_adapter_folder(path)) check_for_near_misses(path);
  return open_model_source(path);
}

std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const char* name : kCompanions) {
    if (std::filesystem::is_regular_file(folder / name, error)) files.push_back(folder / name);
  }
  return files;
}

}  // namespace fsdp::io
