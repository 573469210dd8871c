#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/decoder.h"
#include "train/model/adapters/serve_adapters.h"
#include "train/model/nf4/base_format.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// A model that runs forwards only: whole in the memory of a process, or sharded over the ranks of a world.
class InferenceModel {
 public:
  // COLLECTIVE. Reads a Hugging Face folder. `precision` is "fp32" or "bf16": the dtype of weights and activations. A
  // world of one holds the weights whole: on the CPU in one piece of memory with large pages, and matrices that are
  // stored in bf16 as they are, which changes no value; in a larger one each rank holds its shards in fp32. Throws
  // Error(kUsage) for another precision, io::Error(kModel) for files that do not fit.
  // `adapters`: one without a name is worked into the weights; those with names stay beside them, and requests say
  // which they want (adapters()). io::Error as load_adapter(). `base`: matrices that it keeps as codes once they are
  // read; a world of one.
  InferenceModel(const std::filesystem::path& folder, const std::string& precision, const World& world,
                 c10::Device device = c10::kCPU, const std::vector<NamedAdapter>& adapters = {},
                 BaseFormat base = BaseFormat::kAsComputed);

  const World& world() const { return world_; }
  models::Decoder& decoder() { return decoder_; }
  const models::DecoderConfig& config() const { return decoder_->config(); }
  // What chooses among adapters with names, by their numbers in the list; null without any.
  const std::shared_ptr<models::TokenAdapters>& adapters() const { return tokens_; }

  // A forward whose result nobody needs. COLLECTIVE with the forwards of the other ranks: what a rank does that has no
  // work while others have.
  void idle_forward();

 private:
  World world_;
  models::Decoder decoder_{nullptr};
  std::optional<ShardedModel> sharded_;
  std::optional<ForwardOnly> forward_only_;
  std::shared_ptr<models::TokenAdapters> tokens_;
};

// Number of threads that pay for a forward of few tokens through a model of so many parameters: one for small models,
// whose threads would only wait for each other.
int useful_threads(int64_t num_parameters, int available);

}  // namespace fsdp::train
