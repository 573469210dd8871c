#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/model.h"
#include "plan/setup.h"
#include "plan/time/hardware.h"
#include "plan/time/step_time.h"
#include "plan/time/step_work.h"
#include "plan/traffic.h"

namespace fsdp::plan {

// What the chain of events that decides a step's length consists of, in milliseconds.
struct PathShares {
  double compute = 0;  // forward and backward
  double gather = 0;
  double reduce = 0;
  double optimizer = 0;
  double other = 0;   // ranks compare what they did
  double stages = 0;  // of a pipeline that others wait for

  double sum() const { return compute + gather + reduce + optimizer + other + stages; }
};

// How long a step of a setup takes on some hardware, and where the time goes.
struct Forecast {
  time::Hardware hardware;
  time::StepWork work;  // with at most kMostSimulated microbatches
  time::StepTime step;  // of all microbatches, but for its timeline and critical path, which are those of `work`
  PathShares path;      // of all microbatches
  int64_t microbatches = 1;
  int64_t stage = 0;         // place along `pp` of the slowest ranks, which all of this is about
  double stage_wait_ms = 0;  // in which its ranks wait for other stages; part of step.step_ms
  int64_t world = 1;
  int64_t tokens_per_step = 0;

  double seconds() const { return 1e-3 * step.step_ms; }
  double exposed_ms() const { return step.exposed_gather_ms + step.exposed_reduce_ms; }
  // "compute", "optimizer", or communication, whichever most of the critical path is. Transfers share links, so that a
  // path through one lane has been held up by the other: of them "gather" or "reduce", whatever computing waited for.
  std::string limiting() const;
  double tokens_per_second() const { return static_cast<double>(tokens_per_step) / seconds(); }
};

// Further microbatches take as long as the fourth does.
inline constexpr int64_t kMostSimulated = 4;

// A model with 80 blocks takes about a millisecond. Throws std::invalid_argument where why_no_forecast() has a reason.
Forecast forecast(const PlannedModel& model, const Setup& setup, const Network& network,
                  const time::Hardware& hardware);

// "compute 99.4 %, transfers 0.5 % (gathers 0.2 %, reductions 0.2 %), optimizer 0.2 %".
std::string to_text(const PathShares& path);

// A run over so many tokens, without failures and pauses.
struct RunLength {
  double tokens = 0;
  double steps = 0;  // whole ones
  double hours = 0;
  double rank_hours = 0;
};
RunLength run_length(const Forecast& forecast, double tokens);

// A run's length with `goodput`, the share of time in steps that count.
std::string to_text(const RunLength& length, double goodput);
nlohmann::json to_json(const RunLength& length, double goodput);

// Whether somebody named the hardware.
enum class HardwareOrigin { kGiven, kAssumed };

// A table for people; every number of it for programs.
std::string to_text(const Forecast& forecast, HardwareOrigin origin);
nlohmann::json to_json(const Forecast& forecast, HardwareOrigin origin);

}  // namespace fsdp::plan
