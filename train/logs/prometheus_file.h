#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "train/logs/named_numbers.h"

namespace fsdp::train {

// The newest numbers of a run as Prometheus reads them, for the textfile collector of its node exporter (docs/logs.md).
// The file is replaced whole, so that a reader never meets a part of one; it stays when the run ends.
class PrometheusFile {
 public:
  // `run` tells runs apart: the label of all numbers. Writes nothing.
  PrometheusFile(std::filesystem::path path, const std::string& run);

  // Replaces the file; numbers that are not among these keep their last value. Local. Throws Error(kFileSystem).
  void write(const StepNumbers& numbers);

 private:
  std::filesystem::path path_;
  std::string label_;
  std::map<std::string, double> values_;  // by name
};

}  // namespace fsdp::train
