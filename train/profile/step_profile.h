#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/base/trace.h"
#include "fsdp/fsdp.h"
#include "fsdp/profile/session.h"
#include "train/config/profiled_steps.h"

namespace fsdp::train {

// Records what the library does in some steps of a run, on every rank.
class StepProfile {
 public:
  // `world` must outlive it. No steps: nothing is recorded.
  StepProfile(const World& world, std::optional<ProfiledSteps> steps) : world_(world), steps_(steps) {}

  // Around each step, from 1. COLLECTIVE: ranks begin to record together, so that their clocks are one.
  void begin_step(int64_t step);
  // True once the last one is recorded: then write() is due.
  bool end_step(int64_t step);
  // All ranks' events as one trace of Chrome's format, a process for each rank; rank 0 writes it. COLLECTIVE. Throws
  // Error(kFileSystem).
  void write(const std::filesystem::path& path);

 private:
  const World& world_;
  std::optional<ProfiledSteps> steps_;
  std::unique_ptr<profile::Session> session_;
  std::string label_;
  std::optional<TraceScope> step_;
};

}  // namespace fsdp::train
