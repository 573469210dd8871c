#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fsdp/base/device_memory.h"

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

// Of fp16 training.
struct LossScaling {
  double scale = 0;       // of this step's loss
  int64_t overflows = 0;  // steps skipped for it since the process began
};

// Of a step or evaluation with pairs of answers.
struct PreferenceFigures {
  double margin = 0;    // mean of the chosen answer's reward less the rejected one's
  double accuracy = 0;  // part of the pairs in which it is above 0
};

// The rank that computed longest in the steps that ranks compared last.
struct SlowestRank {
  int rank = 0;
  double excess = 0;  // its computing time above the mean of the others', 0.1 is 10 %
};

// How unequally experts were busy in a step.
struct ExpertLoad {
  double fullest = 0;  // an expert's share of a layer's choices, at most; 1 / experts is even
  double busiest = 1;  // rows that went to those of the busiest rank along "ep", over an equal share
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
  double data_ms = 0;  // of that, waited for batches
  double tokens_per_s = 0;
  double mfu = 0;  // model FLOPs utilisation: what the model's arithmetic needs / the peak of all ranks
  int num_ranks = 1;
  double eta_s = 0;
  MemoryBytes memory;
  std::optional<DeviceMemory> device = {};  // of rank 0; nothing on the CPU
  CommunicationCounts comm;
  std::optional<LossScaling> scaling = {};           // nothing where losses are not scaled
  std::optional<ExpertLoad> experts = {};            // nothing without experts
  std::optional<PreferenceFigures> preference = {};  // with tune.loss = "dpo": then `loss` is a mean over pairs
  std::optional<SlowestRank> slowest = {};           // nothing before ranks have compared
};

// Loss on a held-out split.
struct HeldoutLoss {
  double nats = 0;  // summed over all targets
  int64_t targets = 0;
  int64_t bytes = 0;  // of text that the targets stand for: what "per byte" divides by; 0: not known
  std::optional<PreferenceFigures> preference = {};  // then targets are pairs, and nats their losses

  double loss() const;  // nats per target
  double perplexity() const;
  double nats_per_byte() const;  // NaN where bytes are not known
  double bits_per_byte() const;
};

// "step 120/2000 loss 2.314 gnorm 0.82 lr 3.0e-4 | 41,210 tok/s 38.1% mfu | eta 00:41:10 | mem 812 MiB | data 0.4%".
std::string progress_line(const StepMetrics& metrics);

// The same where one line is drawn over and over: "step 120/2000 [===>    ] loss 2.314 41,210 tok/s eta 00:41:10 rank 1
// +12% | gnorm 0.82 ...", where rank 1 is the slowest. What matters least comes last, where a narrow terminal cuts.
std::string live_line(const StepMetrics& metrics);

// "loss 1.1234, perplexity 3.08, 1.6207 bits per byte (1,234 bytes)"
std::string describe(const HeldoutLoss& loss);

// Of the objects in metrics.jsonl, ledger.jsonl, events.jsonl and samples.jsonl (docs/logs.md): rises when a key goes
// or changes its meaning, not when one is added.
constexpr int kLogSchema = 1;

// One line of metrics.jsonl, without the newline. The fields are those of docs/logs.md.
std::string to_json(const StepMetrics& metrics);
// `weights`: "trained"; or "ema", "average", by which averages of them, which the line then says.
std::string to_json(int64_t step, const HeldoutLoss& loss, const std::string& weights = "trained");

}  // namespace fsdp::train
