#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/base/dtype.h"

namespace fsdp::io {

// A tensor as it is stored.
struct WeightTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<DType> dtype;  // nothing: a type that cannot be read
  std::string type;            // the source's name of it

  int64_t numel() const;
};

// Elements [first, first + count) of the flattened tensor with that index; valid during the call only.
using PieceSink = std::function<void(size_t tensor, int64_t first, int64_t count, const void* elements)>;

// Where weights come from, whatever the format. Reads in pieces of bounded memory. Errors are Error(kModel) naming file
// and tensor, Error(kFileSystem), or what the sink throws.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  const std::filesystem::path& path() const { return path_; }
  // For messages: "DCP checkpoint of 4 files".
  const std::string& description() const { return description_; }
  // Sorted by name.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }
  // What the source holds besides tensors, and that is not read.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Hugging Face's config.json, where the source has one.
  const std::optional<nlohmann::json>& config() const { return config_; }
  // adapter_config.json of peft, where some of the tensors are those of a LoRA adapter (io/weights/adapter.h).
  const std::optional<nlohmann::json>& adapter_config() const { return adapter_config_; }
  // Files that belong to the model besides its weights and config.json: those of the tokenizer, for one. To be copied.
  const std::vector<std::filesystem::path>& companions() const { return companions_; }
  // The same that the source has as text: name -> content.
  const std::map<std::string, std::string>& companion_texts() const { return companion_texts_; }

  // Hands every element of these tensors (indices in tensors(), each once) to the sink: piece after piece, in order
  // within a tensor. REQUIRES: they have a dtype.
  virtual void read(const std::vector<size_t>& wanted, const PieceSink& sink) const = 0;

 protected:
  explicit WeightSource(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::string description_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::string> left_out_;
  std::optional<nlohmann::json> config_;
  std::optional<nlohmann::json> adapter_config_;
  std::vector<std::filesystem::path> companions_;
  std::map<std::string, std::string> companion_texts_;
};

}  // namespace fsdp::io
