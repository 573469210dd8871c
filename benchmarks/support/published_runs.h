// Training runs whose throughput others measured and published, for what predicts it.
#pragma once

#include <string>
#include <vector>

#include "plan/time/decoder_work.h"
#include "plan/time/hardware.h"

namespace fsdp::benchmarks {

// kFit: on 8 GPUs; the planner's constants may be fitted to it. kPredict: to nothing else.
enum class RunRole { kFit, kPredict };

struct PublishedRun {
  std::string source;  // "llm-foundry"; docs/plan_time.md has the address
  std::string name;    // "7b, 2048 tokens, 128 GPUs"
  RunRole role = RunRole::kPredict;
  plan::time::Hardware hardware;
  plan::time::DecoderShape shape;
  plan::time::DecoderSetup setup;
  double tokens_per_second = 0;  // of one GPU, as published

  // Milliseconds of a step that these are.
  double step_ms() const { return 1e3 * setup.tokens() * setup.microbatches / tokens_per_second; }
};

// With hardware of these shares.
std::vector<PublishedRun> published_runs(const plan::time::Shares& shares = {});

}  // namespace fsdp::benchmarks
