#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/adapters/served_adapters.h"
#include "models/decoder.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;  // of peft or of `fsdp train`, or a checkpoint of a LoRA run
};

// Puts these adapters beside the maps of a decoder, by their numbers in the list, in `type`, whose weights stay: what
// its forwards compute is chosen by the result, for every token. Throws io::Error as load_adapter(); nothing has been
// put there then. For a decoder that is whole: local.
std::shared_ptr<models::TokenAdapters> serve_adapters(models::Decoder& decoder,
                                                      const std::vector<NamedAdapter>& adapters, at::ScalarType type);
// For a sharded one: COLLECTIVE over `world`. Every rank has all factors.
std::shared_ptr<models::TokenAdapters> serve_adapters(const ShardedModel& model, const World& world,
                                                      const std::vector<NamedAdapter>& adapters, at::ScalarType type);

}  // namespace fsdp::train
