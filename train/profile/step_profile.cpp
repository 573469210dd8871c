#include "train/profile/step_profile.h"

#include "io/base/atomic_file.h"
#include "train/base/agreement.h"

namespace fsdp::train {
void StepProfile::begin_step(int64_t step) {
  if (!steps_ || step < steps_->first || step > steps_->last) return;
  if (!session_) {
    barrier(world_, "beginning to record steps");
    session_ = std::make_unique<profile::Session>(world_.rank);
  }
  label_ = std::to_string(step);
  step_.emplace("step", label_);
}

bool StepProfile::end_step(int64_t step) {
  step_.reset();
  if (!session_ || step < steps_->last) return false;
  session_->stop();
  return true;
}

void StepProfile::write(const std::filesystem::path& path) {
  const std::vector<std::string> of_ranks = gather_strings(world_, session_->chrome_events());
  session_.reset();
  steps_.reset();
  on_rank0(world_, [&] {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) text += (rank == 0 ? "" : ",\n") + of_ranks[rank];
    io::write_file_atomically(path, text + "\n]}\n");
  });
}

}  // namespace fsdp::train
