#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/forecast/forecast.h"
#include "plan/report.h"
#include "plan/search/floor.h"

namespace fsdp::plan {

// What is searched. Everything else is as in `base`, whose batch (sequences of all ranks in a step) is kept.
struct SearchSpace {
  Setup base;
  int64_t memory = 0;                        // bytes that a rank has
  std::vector<PlannedPrecision> precisions;  // to try
  int64_t most_microbatch_sequences = 64;
  ReportOptions options;
  Machine machine;
  // That steps are predicted for. Unset: the floor, which `machine` gives, stands for the time of a step.
  std::optional<time::Hardware> hardware;
};

// The base's steps are predicted for `hardware`, which also gives the rates of floors. Throws std::invalid_argument if
// it does not compute in the base's dtype.
void predict_for(SearchSpace& space, const time::Hardware& hardware);

// Of a forecast, what a search compares.
struct PredictedStep {
  double seconds = 0;
  double exposed_seconds = 0;  // in which communication holds computing up
  double mfu = 0;
  PathShares path;
  std::string limiting;  // Forecast::limiting()
};

// What a setup costs.
struct Price {
  int64_t memory = 0;  // bytes of a rank
  StepFloor floor;
  std::optional<PredictedStep> step;  // with SearchSpace::hardware

  double seconds() const { return step ? step->seconds : floor.seconds(); }
};
Price price(const PlannedModel& model, const Report& report, const SearchSpace& space);
Price price(const PlannedModel& model, const Setup& setup, const SearchSpace& space);

// How weights are sharded: mesh, strategy, and what rests between forward and backward.
struct Sharding {
  int64_t replicas, shards;
  Strategy strategy;
  std::optional<std::variant<bool, int64_t>> reshard;

  bool is_of(const Setup& setup) const;
  void apply_to(Setup& setup) const;
};

// Of so many ranks that hold a model among them: every mesh whose groups lie alike in nodes of `node` ranks, and every
// strategy that fits it.
std::vector<Sharding> shardings(int64_t world, int64_t node);
// Of the ranks of each of the setup's stages, `tp`, `cp` and `ep` as they are.
std::vector<Sharding> shardings(const Setup& setup);

// In which order stages take turns, and how many of them a rank has.
struct StageOrder {
  pipeline::Order order;
  int64_t stages_per_rank;

  bool is_of(const Setup& setup) const { return order == setup.order && stages_per_rank == setup.stages_per_rank; }
  void apply_to(Setup& setup) const;
};

// The setup's own, and all others that may wait less; its own alone without stages. Some of them do not go with every
// recomputation and number of microbatches: goes().
std::vector<StageOrder> stage_orders(const PlannedModel& model, const Setup& setup);
// Whether the runtime would take the setup's order of stages with its work.
bool goes(const Setup& setup);

inline constexpr std::array<models::Recompute, 4> kAllRecomputes = {
    models::Recompute::kNone, models::Recompute::kElementwise, models::Recompute::kGateUp, models::Recompute::kBlock};

// "123.4 ms", "12.34 s".
std::string duration_text(double seconds);

}  // namespace fsdp::plan
