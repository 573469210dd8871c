#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fsdp/fsdp.h"
#include "models/decoder.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// A model that runs forwards only: whole in the memory of a process, or sharded over the ranks of a world.
class InferenceModel {
 public:
  // COLLECTIVE. Reads a Hugging Face folder. `precision` is "fp32" or "bf16": the dtype of weights and activations. A
  // world of one holds the weights whole: on the CPU in one piece of memory with large pages, and matrices that are
  // stored in bf16 as they are, which changes no value; in a larger one each rank holds its shards in fp32. Throws
  // Error(kUsage) for another precision, io::Error(kModel) for files that do not fit.
  // `adapter`: a folder of peft or a checkpoint of a LoRA run, worked into the weights; empty: none. io::Error as
  // load_adapter().
  InferenceModel(const std::filesystem::path& folder, const std::string& precision, const World& world,
                 c10::Device device = c10::kCPU, const std::filesystem::path& adapter = {});

  const World& world() const { return world_; }
  models::Decoder& decoder() { return decoder_; }
  const models::DecoderConfig& config() const { return decoder_->config(); }

  // A forward whose result nobody needs. COLLECTIVE with the forwards of the other ranks: what a rank does that has no
  // work while others have.
  void idle_forward();

 private:
  World world_;
  models::Decoder decoder_{nullptr};
  std::optional<ShardedModel> sharded_;
  std::optional<ForwardOnly> forward_only_;
};

// Number of threads that pay for a forward of few tokens through a model of so many parameters: one for small models,
// whose threads would only wait for each other.
int useful_threads(int64_t num_parameters, int available);

}  // namespace fsdp::train
