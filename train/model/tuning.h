#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/lora.h"
#include "train/config/config.h"
#include "train/model/model_choice.h"
#include "train/model/nf4/base_format.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// What adapters begin with.
enum class LoraInit {
  kRandom,     // A at random and B zero: the model is its base
  kPrincipal,  // the largest singular values of their weights, which the base then lacks (PiSSA): the model is the base
};

// What of a model trains.
struct Tuning {
  std::optional<models::LoraConfig> lora;     // adapters train, and nothing else
  std::vector<std::string> frozen;            // without adapters: names of parameters that do not train
  BaseFormat base = BaseFormat::kAsComputed;  // of adapters
  LoraInit init = LoraInit::kRandom;          // likewise
};

enum class LoraBase {
  kLoaded,   // its weights are there, as training needs
  kPlanned,  // they may come later: a plan needs shapes
};

// Throws Error(kUsage) if a pattern or a target matches nothing, nothing is left to train, or LoRA has no base as
// `base` says.
Tuning choose_tuning(const TuneConfig& config, const ModelChoice& choice, LoraBase base = LoraBase::kLoaded);

// The element type that the base of an adapter rests in where it is no codes: what is computed with, since nothing
// updates it.
at::ScalarType base_type(const Tuning& tuning, const ShardConfig& config);

// Whether a checkpoint goes with its base only: it lacks the base, or has what was left of it.
bool needs_its_base(const Config& config, const Tuning& tuning);

// What tells the base of adapters from any other, codes from the numbers that they were made of too, and what is left
// of it where they began with a part.
std::string identify_base(const Tuning& tuning, const io::ModelFolder& weights);

// Freezes parameters, adds adapters, makes room for codes of their base. Before parallelize(); may be deferred.
void apply_tuning(const Tuning& tuning, models::Decoder& decoder, uint64_t seed);

// Elements of all parameters, adapters included, of all ranks; of codes those of the weights they stand for. Local.
int64_t num_parameters(const ShardedModel& model);
// Bytes of their main weights, of all ranks. Local.
int64_t weight_bytes(const ShardedModel& model);

// Elements that train, of all ranks, and bytes of this rank's share of their main weights. Local.
struct TrainableSize {
  int64_t parameters = 0;
  int64_t local_bytes = 0;
};
TrainableSize trainable_size(const ShardedModel& model);

// models::flops_per_token() without the gradients of weights that do not train.
double trained_flops_per_token(const ShardedModel& model, int64_t sequence_length);

// "LoRA of rank 8, alpha 16 on q_proj, v_proj: 4,096 of 1,234,567 parameters train (0.33 %)"; "" if all train.
std::string describe(const Tuning& tuning, const ShardedModel& model);

}  // namespace fsdp::train
