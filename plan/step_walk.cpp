#include "plan/step_walk.h"

#include <algorithm>

#include "fsdp/pipeline/order.h"
#include "plan/gradient_walk.h"
#include "plan/weight_walk.h"

namespace fsdp::plan {
namespace {

// A backward ends where nothing below trains; in a later stage the one before waits for it.
size_t lowest_of_backward(const RankPart& part) {
  if (!part.has_start) return 0;
  const auto first =
      std::find_if(part.visits.begin(), part.visits.end(), [](const Visit& each) { return each.trains; });
  return static_cast<size_t>(first - part.visits.begin());
}

class Walk {
 public:
  Walk(const RankPart& part, const std::vector<std::vector<GroupPlan>>& units, const Activations& activations,
       const Setup& setup)
      : part_(part),
        activations_(activations),
        recomputes_blocks_(setup.work.recompute == models::Recompute::kBlock ? setup.work.recompute_every : 0),
        holds_weights_(setup.stages > 1 && traits(setup.strategy).gather != GatherTiming::kPerForwardAndBackward),
        weights_(part.model, units, setup, slabs_, result_.calls),
        gradients_(units, setup, slabs_, result_.calls),
        root_(part.root()),
        lowest_(lowest_of_backward(part)) {
    for (int64_t layer = part.layers.first; layer < part.layers.last; ++layer)
      kept_of_each_ += activations.kept[static_cast<size_t>(layer)];
    kept_of_each_ += activations.outer_kept;
    std::vector<bool> seen(units.size(), false);
    for (const Visit& visit : part.visits) {
      const auto unit = static_cast<size_t>(visit.unit);
      completes_.push_back(visit.trains && !seen[unit]);
      seen[unit] = seen[unit] || visit.trains;
    }
  }

  // The third: the first steps learn the order of units.
  StepWalk steady_step(const std::vector<pipeline::Turn>& turns, int64_t microbatches) {
    for (int step = 0; step < 3; ++step) {
      result_ = {};
      weights_.reset_peak();
      gradients_.reset_peak();
      weights_.begin_step();
      for (const pipeline::Turn& turn : turns) {
        const bool is_last = turn.microbatch + 1 == microbatches;
        turn.pass == pipeline::Pass::kForward ? walk_forward() : walk_backward(is_last);
      }
    }
    result_.peak_unsharded_bytes = weights_.peak_bytes();
    result_.peak_reduce_bytes = gradients_.peak_on_their_way();
    result_.held_bytes = slabs_.held();
    return std::move(result_);
  }

 private:
  bool begins_layer(size_t i) const { return i == 0 || part_.visits[i - 1].layer != part_.visits[i].layer; }
  bool ends_layer(size_t i) const {
    return i + 1 == part_.visits.size() || part_.visits[i + 1].layer != part_.visits[i].layer;
  }
  bool completes(size_t i) const { return completes_[i]; }
  bool is_behind_layers(size_t i) const { return part_.visits[i].layer < 0 && part_.visits[i].backward_reads; }

  void walk_forward() {
    if (!weights_.turns().is_forward_open()) weights_.turns().begin_forward();
    for (size_t i = 0; i < part_.visits.size(); ++i) {
      const Visit& visit = part_.visits[i];
      weights_.touch(visit.unit);
      if (visit.layer < 0 || !ends_layer(i)) continue;
      kept_ += activations_.kept[static_cast<size_t>(visit.layer)];
      note(Moment::Phase::kForward, visit.unit);
    }
    kept_ += activations_.outer_kept;
    ++in_flight_;
    if (!part_.has_end) return;
    loss_ = ++losses_ * activations_.loss_kept + activations_.loss_working;
    note(Moment::Phase::kLoss, root_);
    loss_ = losses_ * activations_.loss_kept;
  }

  // The root's first gradients are the head's, its last one the embedding's.
  void walk_backward(bool is_last) {
    gradients_.begin_microbatch(is_last ? MicrobatchPlace::kLast : MicrobatchPlace::kInner);
    weights_.hold(holds_weights_ && !is_last);
    weights_.begin_backward();
    size_t i = part_.visits.size();
    if (part_.has_end) i = walk_end_backward();
    for (; i-- > lowest_;) {
      const Visit& visit = part_.visits[i];
      visit.layer >= 0 ? walk_layer_backward(i) : walk_embedding_backward(i);
      if (completes(i)) complete(visit.unit);
    }
    kept_ = --in_flight_ * kept_of_each_;
    gradients_.finish_reductions();
    weights_.end_backward();
  }

  // Returns the number of visits that are left.
  size_t walk_end_backward() {
    loss_ += activations_.loss_working;
    kept_ += activations_.tied_gradient;
    size_t i = part_.visits.size();
    for (; i > 0 && is_behind_layers(i - 1); --i) {
      const Visit& visit = part_.visits[i - 1];
      weights_.touch(visit.unit);
      if (visit.trains) gradients_.begin_collecting(visit.unit);
    }
    note(Moment::Phase::kBackward, root_);
    loss_ = --losses_ * activations_.loss_kept;
    kept_ -= activations_.outer_kept;
    for (size_t each = part_.visits.size(); each-- > i;) {
      if (completes(each)) complete(part_.visits[each].unit);
    }
    return i;
  }

  void walk_layer_backward(size_t i) {
    const Visit& visit = part_.visits[i];
    const auto layer = static_cast<size_t>(visit.layer);
    if (ends_layer(i) && recomputes_blocks_ > 0 && visit.layer % recomputes_blocks_ == 0) {
      size_t first = i;
      while (!begins_layer(first)) --first;
      for (; first < i; ++first) weights_.touch(part_.visits[first].unit);
    }
    weights_.touch(visit.unit);
    gradients_.begin_collecting(visit.unit);
    working_ = activations_.working[layer];
    note(Moment::Phase::kBackward, visit.unit);
    working_ = 0;
    if (begins_layer(i)) kept_ -= activations_.kept[layer];
  }

  void walk_embedding_backward(size_t i) {
    const Visit& visit = part_.visits[i];
    kept_ += activations_.tied_gradient;
    note(Moment::Phase::kBackward, visit.unit);
    gradients_.begin_collecting(visit.unit);
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

  void note(Moment::Phase phase, int unit) {
    result_.moments.push_back(
        {phase, unit, weights_.gathered_bytes(), gradients_.resident_bytes(), kept_ + working_, loss_});
  }

  const RankPart& part_;
  const Activations& activations_;
  int64_t recomputes_blocks_;  // the first of every so many; 0: none
  bool holds_weights_;         // of pipeline::Pipeline: gathered once in a step
  StepWalk result_;
  Slabs slabs_;
  WeightWalk weights_;
  GradientWalk gradients_;
  int root_;
  size_t lowest_;
  std::vector<bool> completes_;  // of each visit: in a backward it is the last of its unit
  int64_t kept_of_each_ = 0;     // microbatch, between its forward and its backward
  int64_t in_flight_ = 0;
  int64_t losses_ = 0;
  int64_t kept_ = 0;
  int64_t working_ = 0;
  int64_t loss_ = 0;
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

StepWalk walk_step(const RankPart& part, int64_t stage, const std::vector<std::vector<GroupPlan>>& units,
                   const Activations& activations, const Setup& setup) {
  const auto walk = [&](int64_t microbatches) {
    pipeline::Shape shape = setup.pipeline_shape();
    shape.microbatches = static_cast<int>(microbatches);
    const auto order = setup.stages > 1 ? setup.order : pipeline::Order::k1F1B;
    return Walk(part, units, activations, setup)
        .steady_step(turns_of(order, shape, static_cast<int>(stage)), microbatches);
  };
  const bool keeps_all = setup.stages > 1 && setup.order != pipeline::Order::k1F1B;
  const int64_t most = keeps_all ? setup.work.microbatches : 4 + 2 * (setup.stages - 1);
  StepWalk result = walk(std::min(setup.work.microbatches, most));
  if (setup.work.microbatches > most) extend(result.calls, walk(most - 1).calls, setup.work.microbatches - most);
  return result;
}

}  // namespace fsdp::plan
