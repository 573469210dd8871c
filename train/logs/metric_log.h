#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/base/line_file.h"
#include "train/config/config.h"
#include "train/config/output_folder.h"
#include "train/logs/event_file.h"
#include "train/logs/prometheus_file.h"

namespace fsdp::train {

// The numbers of a run, wherever they are asked for: metrics.jsonl always, TensorBoard's files and Prometheus's where
// the configuration says so. Rank 0 has it.
class MetricLog {
 public:
  // Keeps what was written up to `last_step`; 0: starts anew. Throws Error(kFileSystem).
  MetricLog(const OutputFolder& folder, const OutputConfig& config, int64_t last_step);

  // `json`: an object of docs/logs.md, without a newline. Local. Throws Error(kFileSystem).
  void append(const std::string& json);
  void sync() { lines_.sync(); }
  void go_back_to(int64_t step);

 private:
  void write_prometheus(const StepNumbers& numbers);

  LineFile lines_;
  std::optional<EventFile> events_;
  std::optional<PrometheusFile> prometheus_;
};

}  // namespace fsdp::train
