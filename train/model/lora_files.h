#pragma once

#include <filesystem>
#include <string>

#include "models/lora.h"
#include "train/model/parallelize.h"
#include "train/model/tuning.h"

namespace fsdp::train {

// COLLECTIVE. Writes `folder` as peft stores an adapter: adapter_config.json and adapter_model.safetensors in fp32, for
// DoRA with the norms that rows have now, after PiSSA as an adapter for the base as it was.
// `base` is where the base model is, for those who load it. The folder appears complete or not at all and replaces an
// older one.
void save_adapter(const ShardedModel& model, const World& world, const std::filesystem::path& folder,
                  const models::LoraConfig& lora, const std::string& base);

// Works an adapter into the weights of its base, in place: W + alpha / r B A, computed in fp32, rows of DoRA's lengths
// where it has them. `folder` is one of peft
// or of save_adapter(), or a checkpoint of a LoRA run. Local, for a decoder that is not sharded. Throws io::Error if it
// is no adapter, or one for another model; nothing has been written then.
void load_adapter(models::Decoder& decoder, const std::filesystem::path& folder);

// COLLECTIVE. The same for a sharded model, whose main weights it is worked into: nothing is rounded. Each rank its
// slices. `world` has each element of it once.
void merge_adapter(const ShardedModel& model, const World& world, const std::filesystem::path& folder);

// COLLECTIVE. Fills the adapters of a sharded model, whose base is there, from such a folder, to train on. Each rank
// takes its slices. Throws io::Error(kModel) if it has another rank, scale, kind, modules or shapes than `lora` asks
// for; nothing has been written then.
void load_adapter(const ShardedModel& model, const World& world, const models::LoraConfig& lora,
                  const std::filesystem::path& folder);

// The same as a checkpoint has it, of the parameters of training: it says so where they hold a part of their base.
std::string adapter_config_text(const Tuning& tuning, const std::string& base);

}  // namespace fsdp::train
