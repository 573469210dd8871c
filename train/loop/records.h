#pragma once

#include <cstdint>
#include <optional>

#include "train/base/line_file.h"
#include "train/config/config.h"
#include "train/config/output_folder.h"
#include "train/logs/metric_log.h"

namespace fsdp::train {

// The files of a run that grow by lines. Rank 0 has them.
class Records {
 public:
  // Keeps what was written up to `last_step`; 0: starts anew. Throws Error(kFileSystem).
  Records(const OutputFolder& folder, const Config& config, int64_t last_step);

  void sync();
  void go_back_to(int64_t step);

  MetricLog metrics;
  LineFile ledger;
  std::optional<LineFile> samples;  // where some are asked for
};

}  // namespace fsdp::train
