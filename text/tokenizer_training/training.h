#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "text/documents/document_reader.h"
#include "text/tokenizer_training/bpe_trainer.h"
#include "text/tokenizer_training/tokenizer_files.h"
#include "text/tokenizer_training/word_counter.h"

namespace fsdp::tokenizer_training {

struct TrainingOptions {
  std::vector<std::string> inputs;  // files, folders, globs: io::find_inputs
  io::DocumentOptions documents;
  WordCounter::Options words;
  TokenizerOptions tokenizer;
  int64_t vocab_size = 0;
  uint64_t min_frequency = 2;
};

struct Progress {
  enum class Stage { kCounting, kMerging } stage;
  uint64_t done;   // bytes on disk; tokens
  uint64_t total;  // the same
};

struct TrainingResult {
  BpeModel model;
  uint64_t num_files = 0;
  uint64_t num_documents = 0;
  uint64_t num_skipped = 0;    // bad records
  uint64_t num_bytes = 0;      // of text
  uint64_t num_words = 0;      // distinct
  uint64_t num_forgotten = 0;  // see WordCounter
  uint64_t num_long = 0;
};

// Counts the words of all documents and trains a vocabulary on them. `progress` is called by the calling thread, a few
// times a second. Throws Error(kUsage | kData | kFileSystem).
TrainingResult train_tokenizer(const TrainingOptions& options, const std::function<void(const Progress&)>& progress);

}  // namespace fsdp::tokenizer_training
