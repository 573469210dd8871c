#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::train {

struct MemoryBytes {
  int64_t resident = 0;  // of this process, now
  int64_t peak = 0;      // and at most so far
  int64_t params = 0;    // main and model weights of this rank
  int64_t grads = 0;
  int64_t optimizer = 0;
  int64_t comm = 0;  // gathered units and reduce buffers, at most, since the line before
};

struct CommunicationCounts {
  int64_t gathers = 0;
  int64_t reduces = 0;
  int64_t bytes = 0;      // received by this rank
  double exposed_ms = 0;  // waited for, not hidden behind compute
};

// One logged step. Counts and memory are rank 0's, and cover the steps since the line before.
struct StepMetrics {
  int64_t step = 0;    // steps done
  int64_t steps = 0;   // of the whole run
  int64_t tokens = 0;  // read by the model since the start, over all ranks
  double loss = 0;     // nats per target, of this step's global batch
  double grad_norm = 0;
  double lr = 0;
  double step_ms = 0;  // mean since the line before
  double tokens_per_s = 0;
  int num_ranks = 1;
  double eta_s = 0;
  MemoryBytes memory;
  CommunicationCounts comm;
};

// Loss on a held-out split.
struct HeldoutLoss {
  double nats = 0;  // summed over all targets
  int64_t targets = 0;
  int64_t bytes = 0;  // targets that are bytes of text: what "per byte" divides by

  double nats_per_byte() const;
  double bits_per_byte() const;
};

// "step 120/2000 loss 2.314 gnorm 0.82 lr 3.0e-4 | 41,210 tok/s | mem 812 MiB | eta 00:41:10".
std::string progress_line(const StepMetrics& metrics);

// One line of metrics.jsonl, without the newline. The fields are those of docs/config.md.
std::string to_json(const StepMetrics& metrics);
std::string to_json(int64_t step, const HeldoutLoss& loss);

}  // namespace fsdp::train
