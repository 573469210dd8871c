#include "plan/step_walk.h"

#include <algorithm>

#include "fsdp/pipeline/order.h"
#include "plan/gradient_walk.h"
#include "plan/weight_walk.h"

namespace fsdp::plan {
namespace {

// Of a stage's visits.
struct StageWalk {
  const PlannedStage& stage;
  size_t lowest;                 // at which its backward ends
  std::vector<bool> completes;   // of each: in a backward it is the last of its unit
  std::vector<bool> expected;    // of each unit: whether a backward brings its gradients
  int64_t kept = 0;              // of each microbatch, between its forward and its backward
  int64_t kept_for_weights = 0;  // likewise, between the two parts of its backward

  bool begins_layer(size_t i) const { return i == 0 || visit(i - 1).layer != visit(i).layer; }
  bool ends_layer(size_t i) const { return i + 1 == size() || visit(i + 1).layer != visit(i).layer; }
  bool is_behind_layers(size_t i) const { return visit(i).layer < 0 && visit(i).backward_reads; }
  const Visit& visit(size_t i) const { return stage.visits[i]; }
  size_t size() const { return stage.visits.size(); }
};

// A backward ends where nothing below trains; in a later stage the one before waits for it.
size_t lowest_of_backward(const PlannedStage& stage) {
  if (!stage.has_start) return 0;
  const auto first =
      std::find_if(stage.visits.begin(), stage.visits.end(), [](const Visit& each) { return each.trains; });
  return static_cast<size_t>(first - stage.visits.begin());
}

StageWalk stage_walk(const PlannedStage& stage, const Activations& activations, size_t num_units) {
  StageWalk walk{stage, lowest_of_backward(stage), {}, std::vector<bool>(num_units, false)};
  for (const Visit& visit : stage.visits) {
    const auto unit = static_cast<size_t>(visit.unit);
    walk.completes.push_back(visit.trains && !walk.expected[unit]);
    walk.expected[unit] = walk.expected[unit] || visit.trains;
  }
  for (int64_t layer = stage.layers.first; layer < stage.layers.last; ++layer) {
    walk.kept += activations.kept[static_cast<size_t>(layer)];
    if (!activations.kept_for_weights.empty())  // it was not measured
      walk.kept_for_weights += activations.kept_for_weights[static_cast<size_t>(layer)];
  }
  walk.kept += stage.has_end ? activations.outer_kept : activations.border_kept;
  if (stage.has_end) walk.kept_for_weights += activations.outer_kept;
  return walk;
}

class Walk {
 public:
  Walk(const RankPart& part, const std::vector<std::vector<GroupPlan>>& units, const Activations& activations,
       const Setup& setup)
      : activations_(activations),
        shape_(setup.pipeline_shape()),
        order_(setup.order),
        recomputes_blocks_(setup.work.recompute == models::Recompute::kBlock ? setup.work.recompute_every : 0),
        holds_weights_(setup.pipeline > 1 && traits(setup.strategy).gather != GatherTiming::kPerForwardAndBackward),
        weights_(part.model, units, setup, slabs_, result_.calls),
        gradients_(units, setup, slabs_, result_.calls),
        root_(part.root()),
        nothing_(units.size(), false) {
    for (const PlannedStage& stage : part.stages) stages_.push_back(stage_walk(stage, activations, units.size()));
  }

  // The third: the first steps learn the order of units.
  StepWalk steady_step(const std::vector<pipeline::Turn>& turns) {
    for (int step = 0; step < 3; ++step) {
      result_ = {};
      weights_.reset_peak();
      gradients_.reset_peak();
      weights_.begin_step();
      gradients_left_ = 0;
      for (const pipeline::Turn& turn : turns) gradients_left_ += brings_gradients(turn) ? 1 : 0;
      for (const pipeline::Turn& turn : turns) take(turn);
    }
    result_.peak_unsharded_bytes = weights_.peak_bytes();
    result_.peak_reduce_bytes = gradients_.peak_on_their_way();
    result_.held_bytes = slabs_.held();
    return std::move(result_);
  }

 private:
  bool brings_gradients(const pipeline::Turn& turn) const {
    if (turn.pass == pipeline::Pass::kBackward) return !is_split(order_, turn.stage);
    return turn.pass == pipeline::Pass::kWeights;
  }

  void take(const pipeline::Turn& turn) {
    const StageWalk& walk = stages_[static_cast<size_t>(turn.stage / shape_.ranks)];
    const bool brings = brings_gradients(turn);
    if (brings) --gradients_left_;
    if (turn.pass == pipeline::Pass::kForward) return walk_forward(walk);
    if (brings) gradients_.begin_microbatch(gradients_left_ == 0 ? MicrobatchPlace::kLast : MicrobatchPlace::kInner);
    weights_.hold(holds_weights_ && (gradients_left_ > 0 || !brings));
    weights_.begin_backward(brings ? walk.expected : nothing_);
    if (turn.pass == pipeline::Pass::kWeights) {
      walk_weights(walk);
    } else {
      brings ? walk_backward(walk) : walk_inputs(walk);
    }
    if (brings) gradients_.end_backward();
    weights_.end_backward();
  }

  void walk_forward(const StageWalk& walk) {
    if (!weights_.turns().is_forward_open()) weights_.turns().begin_forward();
    for (size_t i = 0; i < walk.size(); ++i) {
      const Visit& visit = walk.visit(i);
      weights_.touch(visit.unit);
      if (visit.layer < 0 || !walk.ends_layer(i)) continue;
      kept_ += activations_.kept[static_cast<size_t>(visit.layer)];
      note(Moment::Phase::kForward, visit.unit);
    }
    kept_ += walk.stage.has_end ? activations_.outer_kept : activations_.border_kept;
    if (!walk.stage.has_end) return;
    ++losses_;
    note_loss(Moment::Phase::kLoss);
  }

  // The root's first gradients are the head's, its last one the embedding's.
  void walk_backward(const StageWalk& walk) {
    const int64_t after = kept_ - walk.kept;
    size_t i = walk.size();
    if (walk.stage.has_end) i = walk_end_backward(walk);
    for (; i-- > walk.lowest;) {
      const Visit& visit = walk.visit(i);
      visit.layer >= 0 ? walk_layer_backward(walk, i) : walk_embedding_backward(visit);
      if (walk.completes[i]) complete(visit.unit);
    }
    kept_ = after;
  }

  // Returns the number of visits that are left.
  size_t walk_end_backward(const StageWalk& walk) {
    kept_ += activations_.tied_gradient;
    size_t i = walk.size();
    for (; i > 0 && walk.is_behind_layers(i - 1); --i) {
      const Visit& visit = walk.visit(i - 1);
      weights_.touch(visit.unit);
      if (visit.trains) gradients_.begin_collecting(visit.unit);
    }
    note_loss(Moment::Phase::kBackward);
    --losses_;
    kept_ -= activations_.outer_kept;
    for (size_t each = walk.size(); each-- > i;) {
      if (walk.completes[each]) complete(walk.visit(each).unit);
    }
    return i;
  }

  void walk_layer_backward(const StageWalk& walk, size_t i) {
    const Visit& visit = walk.visit(i);
    const auto layer = static_cast<size_t>(visit.layer);
    if (walk.ends_layer(i) && recomputes_blocks_ > 0 && visit.layer % recomputes_blocks_ == 0) {
      size_t first = i;
      while (!walk.begins_layer(first)) --first;
      for (; first < i; ++first) weights_.touch(walk.visit(first).unit);
    }
    weights_.touch(visit.unit);
    gradients_.begin_collecting(visit.unit);
    note_working(visit);
    if (walk.begins_layer(i)) kept_ -= activations_.kept[layer];
  }

  void walk_embedding_backward(const Visit& visit) {
    kept_ += activations_.tied_gradient;
    note(Moment::Phase::kBackward, visit.unit);
    gradients_.begin_collecting(visit.unit);
  }

  // That part of a split backward which gives the stage before its gradient.
  void walk_inputs(const StageWalk& walk) {
    const int64_t after = kept_ - walk.kept + walk.kept_for_weights;
    size_t i = walk.size();
    for (; i > 0 && walk.is_behind_layers(i - 1); --i) weights_.touch(walk.visit(i - 1).unit);
    if (walk.stage.has_end) {
      note_loss(Moment::Phase::kBackward);
      --losses_;
      ++losses_for_weights_;
    }
    while (i-- > 0) {
      const Visit& visit = walk.visit(i);
      const auto layer = static_cast<size_t>(visit.layer);
      weights_.touch(visit.unit);
      note_working(visit);
      if (walk.begins_layer(i)) kept_ += activations_.kept_for_weights[layer] - activations_.kept[layer];
    }
    kept_ = after;
  }

  // The other part. Of a block's weights its norms' are read.
  void walk_weights(const StageWalk& walk) {
    const int64_t after = kept_ - walk.kept_for_weights;
    for (size_t i = walk.size(); i-- > 0;) {
      const Visit& visit = walk.visit(i);
      if (visit.trains) {
        gradients_.begin_collecting(visit.unit);
        weights_.touch(visit.unit);
        note(Moment::Phase::kBackward, visit.unit);
      }
      if (walk.completes[i]) complete(visit.unit);
      if (visit.layer >= 0 && walk.begins_layer(i))
        kept_ -= activations_.kept_for_weights[static_cast<size_t>(visit.layer)];
    }
    if (walk.stage.has_end) --losses_for_weights_;
    kept_ = after;
  }

  // Context::gradient_ready(), at the last gradient of a unit.
  void complete(int unit) {
    if (!gradients_.trains(unit)) return;
    weights_.note_gradients_complete(unit);
    weights_.turns().complete_gradients(unit, [&] {
      gradients_.finish_collecting(unit);
      note(Moment::Phase::kReduce, unit);
    });
  }

  void note_working(const Visit& visit) {
    const int64_t working = activations_.working[static_cast<size_t>(visit.layer)];
    kept_ += working;
    note(Moment::Phase::kBackward, visit.unit);
    kept_ -= working;
  }
  void note_loss(Moment::Phase phase) {
    note(phase, root_);
    result_.moments.back().loss += activations_.loss_working;
  }
  void note(Moment::Phase phase, int unit) {
    const int64_t loss = losses_ * activations_.loss_kept + losses_for_weights_ * activations_.loss_kept_for_weights;
    result_.moments.push_back({phase, unit, weights_.gathered_bytes(), gradients_.resident_bytes(), kept_, loss});
  }

  const Activations& activations_;
  pipeline::Shape shape_;
  pipeline::Order order_;
  int64_t recomputes_blocks_;  // the first of every so many; 0: none
  bool holds_weights_;         // of pipeline::Pipeline: gathered once in a step
  StepWalk result_;
  Slabs slabs_;
  WeightWalk weights_;
  GradientWalk gradients_;
  int root_;
  std::vector<bool> nothing_;  // by unit
  std::vector<StageWalk> stages_;
  int64_t gradients_left_ = 0;  // turns of the step that bring gradients of weights
  int64_t losses_ = 0, losses_for_weights_ = 0;
  int64_t kept_ = 0;
};

// `times` more microbatches like the one by which `four` exceeds `three`.
void extend(CallLedger& four, const CallLedger& three, int64_t times) {
  const auto add = [times](int64_t& value, int64_t before) { value += times * (value - before); };
  add(four.gathers, three.gathers);
  add(four.reduces, three.reduces);
  add(four.gather_bytes, three.gather_bytes);
  add(four.reduce_bytes, three.reduce_bytes);
  for (size_t i = 0; i < four.collectives.size(); ++i) {
    add(four.collectives[i].calls, three.collectives[i].calls);
    add(four.collectives[i].received_bytes, three.collectives[i].received_bytes);
  }
}

}  // namespace

const Moment& StepWalk::peak() const {
  return *std::max_element(moments.begin(), moments.end(),
                           [](const Moment& a, const Moment& b) { return a.computed() < b.computed(); });
}

StepWalk walk_step(const RankPart& part, int64_t place, const std::vector<std::vector<GroupPlan>>& units,
                   const Activations& activations, const Setup& setup) {
  const auto order = setup.pipeline > 1 ? setup.order : pipeline::Order::k1F1B;
  const auto walk = [&](int64_t microbatches) {
    pipeline::Shape shape = setup.pipeline_shape();
    shape.microbatches = static_cast<int>(microbatches);
    return Walk(part, units, activations, setup).steady_step(turns_of(order, shape, static_cast<int>(place)));
  };
  // Interleaved stages take turns of as many microbatches as there are ranks.
  const int64_t period = order == pipeline::Order::kInterleaved ? setup.pipeline : 1;
  const int64_t most = order == pipeline::Order::kGPipe         ? setup.work.microbatches
                       : order == pipeline::Order::kInterleaved ? 4 * period
                                                                : 4 + 2 * (setup.pipeline - 1);
  StepWalk result = walk(std::min(setup.work.microbatches, most));
  if (setup.work.microbatches > most)
    extend(result.calls, walk(most - period).calls, (setup.work.microbatches - most) / period);
  return result;
}

}  // namespace fsdp::plan
