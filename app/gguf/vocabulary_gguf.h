// A tokenizer as llama.cpp reads it.
#pragma once

#include <cstdint>
#include <string>

#include "io/base/weight_source.h"
#include "io/gguf/gguf_writer.h"

namespace fsdp::app {

struct GgufVocabulary {
  io::GgufMetadata metadata;
  std::string why_none;  // where the file says that it has no vocabulary; "" if it has one
};

// Of the tokenizer.json that belongs to the source: byte-level BPE cut into words as one of those that llama.cpp knows
// by name. `vocab_size`: rows of the embedding; ids beyond the tokenizer's are filled up.
GgufVocabulary gguf_vocabulary(const io::WeightSource& source, int64_t vocab_size);

}  // namespace fsdp::app
