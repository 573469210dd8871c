#pragma once

#include <filesystem>
#include <string>

#include "io/model_folder.h"
#include "train/parallelize.h"

namespace fsdp::train {

// Fills the main weights from a model folder, converted to their dtype. Each rank reads only its slices. Local.
// Throws io::Error(kModel) with one table of what is missing, surplus, or of another shape or type; nothing has been
// written then.
void load_weights(const ShardedModel& model, const io::ModelFolder& folder);

// COLLECTIVE. Writes `folder` in Hugging Face's layout: config.json, generation_config.json, model.safetensors in
// fp32 (shards above io::kDefaultShardBytes) and, for `tokenizer` == "bytes", the marker that `fsdp generate` looks
// for. Rank 0 writes, unit by unit. The folder appears complete or not at all and replaces an older one.
void save_model(const ShardedModel& model, const World& world, const std::filesystem::path& folder,
                const std::string& tokenizer);

}  // namespace fsdp::train
