#include "train/loop/records.h"

namespace fsdp::train {
namespace {

constexpr int64_t kNothing = -1;

int64_t kept(int64_t last_step) { return last_step == 0 ? kNothing : last_step; }

}  // namespace

Records::Records(const OutputFolder& folder, const Config& config, int64_t last_step)
    : metrics(folder, config.output, last_step), ledger(folder.ledger(), kept(last_step)) {
  if (config.sample.every_steps > 0) samples.emplace(folder.samples(), kept(last_step));
}

void Records::sync() {
  metrics.sync();
  ledger.sync();
  if (samples) samples->sync();
}

void Records::go_back_to(int64_t step) {
  metrics.go_back_to(step);
  ledger.go_back_to(step);
  if (samples) samples->go_back_to(step);
}

}  // namespace fsdp::train
