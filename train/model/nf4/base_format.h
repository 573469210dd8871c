#pragma once

#include <string>

#include "models/decoder.h"
#include "train/config/config.h"
#include "train/model/model_choice.h"

namespace fsdp::train {

// What the base of an adapter rests in.
enum class BaseFormat {
  kAsComputed,  // the type that is computed with: bf16, or fp32
  kNf4,         // linear maps of the blocks as NF4 codes with double quantisation, the rest as computed
  kNf4All,      // embeddings and head, too: all matrices
};

inline bool has_codes(BaseFormat base) { return base != BaseFormat::kAsComputed; }

// "nf4", "nf4_all", and "bf16", the name of what kAsComputed is in most runs.
BaseFormat parse_base_format(const std::string& name);

// "NF4 codes", or of what; "" for kAsComputed.
std::string describe(BaseFormat base);

// Makes room for the codes of a base: matrices give way to their bytes, which are 0. Before parallelize(); may be
// deferred.
void keep_as_codes(const models::Decoder& decoder, BaseFormat base);

// Throws Error(kUsage) if tune.base asks for what does not go with the model or another setting, or the model's weights
// are codes and nothing asks for them. Local.
void check_base_format(const Config& config, const ModelChoice& choice);

}  // namespace fsdp::train
