// What of a model one rank has, and in which order a step computes with it.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config/stages.h"
#include "plan/model.h"
#include "plan/setup.h"

namespace fsdp::plan {

// A stretch of a forward in which the computation is in one unit. The backward goes through them in reverse.
struct Visit {
  int unit;            // of PlannedModel: the blocks in order, the root last
  int64_t layer = -1;  // of the model; -1: before the layers or behind them
  bool trains = false;
  bool backward_reads = true;  // the weights; an embedding's does not
};

// What a rank computes between two messages of a pipeline; without one, all.
struct PlannedStage {
  models::BlockRange layers;
  bool has_start = true;  // of the model: the embedding
  bool has_end = true;    // last norm, head and loss
  std::vector<Visit> visits;
};

// Units as the trainer makes them (train/model/parallelize.cpp).
struct RankPart {
  PlannedModel model;                // whose decoder is this rank's part, too, but has all layers
  std::vector<PlannedStage> stages;  // in the model's order

  int root() const { return static_cast<int>(model.blocks.size()); }
  bool has_start() const { return stages.front().has_start; }
  bool has_end() const { return stages.back().has_end; }
};

// The blocks of each of the setup's stages, by the trainer's own cut. REQUIRES: check_axes().
std::vector<models::BlockRange> stages_of(const PlannedModel& model, const Setup& setup);

// Of the ranks at `place` along `pp`. REQUIRES: check_axes().
RankPart rank_part(const PlannedModel& model, const Setup& setup, int64_t place = 0);

// To its experts, ranks along `ep` are as ranks along `tp` are to layers: each has another part. Those along `tp` have
// the same experts, each for its own tokens, and so share their weights as those along `shard` do.
Setup setup_of_experts(const Setup& setup);
Setup setup_of(const PlannedUnit& unit, const Setup& setup);

}  // namespace fsdp::plan
