#pragma once

#include <filesystem>

#include "train/config.h"

namespace fsdp::train {

// The folder of a run on disk.
struct OutputFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path model() const { return root / "model"; }
};

// Throws Error(kUsage) if the folder holds a run already and may not be replaced. Writes nothing.
void check_output(const OutputFolder& folder, const Config& config);

// Makes the folder and writes config.toml. Throws Error(kFileSystem) if it cannot be written. An older run's files go,
// others stay.
void start_output(const OutputFolder& folder, const Config& config);

}  // namespace fsdp::train
