#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/console.h"

namespace fsdp::train {

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  std::vector<std::string> extensions;  // of files below folders; empty: all
  double holdout = 0.05;                // share of the files, from the end of the sorted list, that is held out
  int threads = 0;                      // 0: one per core
  bool overwrite = false;
  int64_t max_document_bytes = int64_t{16} << 20;  // a longer file becomes several documents
};

struct PrepareResult {
  int64_t num_files = 0;
  int64_t num_heldout_files = 0;
  int64_t num_empty_files = 0;
  int64_t num_bytes = 0;
  int64_t num_tokens = 0;
  double seconds = 0;
};

// Turns text into a data set of byte tokens (docs/data_format.md) with the splits "train" and, if anything is held out,
// "heldout". Any bytes are legal. The result depends on the files alone, not on the number of threads. The folder
// appears complete or not at all. Throws Error(kUsage | kData | kFileSystem) or io::Error.
PrepareResult prepare(const PrepareOptions& options, Console& console);

}  // namespace fsdp::train
