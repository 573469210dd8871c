#include "io/hub/model_source.h"

#include <algorithm>
#include <system_error>

#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/base/json.h"
#include "io/hub/adapter_config.h"
#include "io/hub/companion_files.h"
#include "io/hub/model_folder.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kCopyPieceBytes = uint64_t{16} << 20;

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

}  // namespace

std::unique_ptr<WeightSource> open_model_source(const std::filesystem::path& path) {
  return std::make_unique<ModelSource>(path);
}

bool is_model_folder(const std::filesystem::path& path) { return has_weights(path) || is_adapter_folder(path); }

}  // namespace fsdp::io
