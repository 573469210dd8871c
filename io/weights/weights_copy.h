#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/weight_source.h"
#include "io/hub/model_folder_writer.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::io {

// What is taken from a source, and as what it is stored.
struct CopyPlan {
  std::vector<size_t> wanted;              // indices in WeightSource::tensors()
  std::vector<TensorDeclaration> outputs;  // one for each
  uint64_t bytes = 0;                      // of all outputs
};

// Takes the tensors whose name starts with `prefix`, and drops the prefix. With a `dtype` (BF16, F16 or F32),
// floating-point tensors are converted to it; others never are. Throws Error(kUsage) naming tensor or prefix if nothing
// is left, or a tensor has a type that cannot be stored or converted.
CopyPlan plan_copy(const WeightSource& source, std::string_view prefix, std::optional<DType> dtype);

struct OutputFolder {
  std::filesystem::path path;
  bool overwrite = false;
  uint64_t max_shard_bytes = kDefaultShardBytes;  // of a model folder's files; 0: one file
};

// Throws Error(kUsage) if the output is the source: replacing that would be surprising even where it worked.
void check_not_source(const std::filesystem::path& source, const OutputFolder& output);

// Makes config.json say that weights are `dtype` ("bfloat16"), under "dtype" or, as older files have it, "torch_dtype".
void set_dtype(nlohmann::json& config, const std::string& dtype);

// Writes a folder of Hugging Face: model.safetensors or shards and their index; if given, config.json, whose "dtype"
// becomes that of the weights where all have one, and generation_config.json; and the companions of the source. The
// folder appears complete or not at all. Bounded memory.
void write_model_folder(const WeightSource& source, const CopyPlan& plan, const OutputFolder& output,
                        std::optional<nlohmann::json> config);

// Writes a checkpoint of DCP whose names start with `prefix`. The folder appears complete or not at all. Bounded
// memory.
void write_dcp_folder(const WeightSource& source, const CopyPlan& plan, const OutputFolder& output,
                      const std::string& prefix);

}  // namespace fsdp::io
