#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "io/hub/model_folder.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

struct AdapterStart;  // train/model/adapters/adapter_start.h

// What fsdp::named_parameters() gives.
using NamedLeaves = std::vector<std::pair<std::string, at::Tensor>>;

// Fills the main weights from a model folder, converted to their dtype; adapters stay as they are. Each rank reads only
// its slices. Local.
// Throws io::Error(kModel) with one table of what is missing, surplus, or of another shape or type; nothing has
// been written then.
// `start`: as load_codes().
void load_weights(const ShardedModel& model, const io::ModelFolder& folder, const AdapterStart* start = nullptr);

// Throws what load_weights() throws for names, shapes and types. Local.
void check_names_and_shapes(const ShardedModel& model, const io::ModelFolder& folder);

// COLLECTIVE. Hands the main weights of these tensors, whole and in fp32, to `take` on rank 0: elements [first, first +
// values.numel()) of the flattened parameter, piece after piece. `leaves`: what this rank has of them. If it throws,
// every rank throws.
using TakePiece = std::function<void(const std::string& name, int64_t first, const at::Tensor& values)>;
void collect_main_weights(const World& world, const std::vector<WholeTensor>& whole, const NamedLeaves& leaves,
                          const TakePiece& take);

// COLLECTIVE. Writes `folder` in Hugging Face's layout: config.json, generation_config.json, model.safetensors in fp32
// (shards above io::kDefaultShardBytes) and the tokenizer:
// copies of the files in `tokenizer_files`, or, without such a folder and for `tokenizer` == "bytes", the marker that
// `fsdp generate` looks for. Rank 0 writes, unit by unit. The folder appears complete or not at all and replaces an
// older one.
void save_model(const ShardedModel& model, const World& world, const std::filesystem::path& folder,
                const std::string& tokenizer, const std::filesystem::path& tokenizer_files = {});

}  // namespace fsdp::train
