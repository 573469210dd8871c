#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "train/data/batch_source.h"

namespace fsdp::train {

// Reads the batches of the next step in a thread of its own while the present step computes, and measures how long
// training waited all the same. Gives what the source gives, in any order of steps, also after the cursor was moved:
// what was read ahead for another place is thrown away. An error of the source is thrown by the step that needs the
// batch. Holds the batches of up to three steps. For one consuming thread.
class Prefetch : public BatchSource {
 public:
  // `source` must outlive it.
  explicit Prefetch(const StepSource& source);
  ~Prefetch() override;
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  int64_t num_microbatches(int64_t step) const override { return source_.num_microbatches(step); }
  int64_t num_targets(int64_t step) const override { return batches(step).num_targets; }
  Batch microbatch(int64_t step, int64_t micro) const override {
    return batches(step).microbatches[static_cast<size_t>(micro)];
  }
  int64_t position(int64_t step, int64_t micro) const override { return source_.position(step, micro); }

  // Milliseconds that the consumer has waited for data since the call before.
  double take_wait_ms();

 private:
  struct Read {
    StepPlace place;
    StepBatches batches;
    std::exception_ptr failure;
  };

  const StepBatches& batches(int64_t step) const;
  Read take(const StepPlace& place) const;
  void work();

  const StepSource& source_;
  mutable std::optional<Read> current_;  // of the consumer
  mutable double wait_ms_ = 0;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::optional<StepPlace> wanted_;  // to be read next
  mutable std::optional<StepPlace> reading_;
  mutable std::optional<Read> ready_;
  bool ends_ = false;
  std::thread thread_;  // begins when all the rest is there
};

}  // namespace fsdp::train
