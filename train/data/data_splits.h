#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "models/config/decoder_config.h"
#include "train/config/config.h"
#include "train/data/packed_split.h"

namespace fsdp::train {

// The splits that a run reads: of one data set, or of all of a mixture.
struct Splits {
  PackedSplit train;
  std::optional<PackedSplit> heldout;  // one after the other, without weights
};

// Opens what data.path names. Throws Error(kUsage | kData) or io::Error(kData) for what is missing, damaged or empty,
// for data sets of different tokenizers, and for a held-out split that is asked for and that none of them has.
Splits open_splits(const Config& config);

// Compares the splits with their hashes, as check.data says: "never", "always", or "auto" (where it takes seconds).
void verify_splits(const Splits& splits, const std::string& choice);

// Is the model made for this data? Throws Error(kUsage) if a sequence is longer than what the model was made for
// (one that is made from keys is made for it: its limit is raised), or if the tokenizer in the folder model.path has
// another vocabulary than the one that made the data.
void fit_model(models::DecoderConfig& model, const Config& config, const PackedSplit& data);

// Throws Error(kUsage) if the tokenizer in a model's folder has another vocabulary than the one that made the data.
// Where one of the two has no tokenizer.json, nothing is known and nothing is thrown.
void check_vocabulary(const std::string& model_folder, const io::TokenDataset& data);

// "1,234,567 tokens in 2,412 sequences (99.9% full, 97.0% predicted); held out: 12,345 tokens", and of a mixture the
// shares, and of which nothing is held out.
std::string describe_splits(const Splits& splits);

// The files of the tokenizer that made the data, as `fsdp prepare` copied them; empty where there are none, as in data
// sets of older versions.
std::filesystem::path tokenizer_folder(const io::TokenDataset& data);

}  // namespace fsdp::train
