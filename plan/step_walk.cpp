#include "plan/step_walk.h"

#include <algorithm>
#include <span>

#include "plan/gradient_walk.h"
#include "plan/weight_walk.h"

namespace fsdp::plan {
namespace {

bool any_trains(std::span<const PlannedParameter> parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& each) { return each.trains; });
}

// The root's first parameters, whose gradients come last, and its others.
std::span<const PlannedParameter> first_of_root(const PlannedModel& model) {
  return std::span(model.root.parameters).first(std::min(model.num_first, model.root.parameters.size()));
}
std::span<const PlannedParameter> others_of_root(const PlannedModel& model) {
  return std::span(model.root.parameters).subspan(first_of_root(model).size());
}

bool embedding_trains(const PlannedModel& model) { return any_trains(first_of_root(model)); }

// A backward ends where nothing below trains.
int lowest_block_of_backward(const PlannedModel& model) {
  if (embedding_trains(model)) return 0;
  const auto first = std::find_if(model.blocks.begin(), model.blocks.end(), [](const auto& b) { return b.trains(); });
  return static_cast<int>(first - model.blocks.begin());
}

class Walk {
 public:
  Walk(const PlannedModel& model, const std::vector<std::vector<GroupPlan>>& units, const Activations& activations,
       const Setup& setup)
      : activations_(activations),
        weights_(units, setup, slabs_, result_.calls),
        gradients_(units, setup, slabs_, result_.calls),
        root_(weights_.root()),
        reads_before_(!first_of_root(model).empty()),
        reads_behind_(!others_of_root(model).empty() || model.head == TiedHead::kYes),
        head_trains_(any_trains(others_of_root(model))),
        embedding_trains_(embedding_trains(model)),
        lowest_(lowest_block_of_backward(model)) {}

  // The third: the first steps learn the order of units.
  StepWalk steady_step(int64_t microbatches) {
    for (int step = 0; step < 3; ++step) {
      result_ = {};
      weights_.reset_peak();
      gradients_.reset_peak();
      weights_.begin_step();
      for (int64_t i = 0; i < microbatches; ++i) {
        gradients_.begin_microbatch(i + 1 == microbatches ? MicrobatchPlace::kLast : MicrobatchPlace::kInner);
        walk_forward();
        walk_backward();
      }
    }
    result_.peak_unsharded_bytes = weights_.peak_bytes();
    result_.peak_reduce_bytes = gradients_.peak_on_their_way();
    result_.held_bytes = slabs_.held();
    return std::move(result_);
  }

 private:
  void walk_forward() {
    weights_.turns().begin_forward();
    if (reads_before_) weights_.turns().move_to(root_);
    for (int block = 0; block < root_; ++block) {
      weights_.turns().move_to(block);
      kept_ += activations_.kept[static_cast<size_t>(block)];
      note(Moment::Phase::kForward, block);
    }
    if (!reads_before_ && reads_behind_) weights_.turns().move_to(root_);
    kept_ += activations_.outer_kept;
    loss_ = activations_.loss_kept + activations_.loss_working;
    note(Moment::Phase::kLoss, root_);
  }

  // The root's first gradients are the head's, its last one the embedding's.
  void walk_backward() {
    weights_.begin_backward();
    if (reads_behind_) weights_.turns().move_to(root_);
    if (head_trains_) gradients_.begin_collecting(root_);
    kept_ += activations_.tied_gradient;
    note(Moment::Phase::kBackward, root_);
    loss_ = 0;
    kept_ -= activations_.outer_kept;
    if (!embedding_trains_) complete(root_);
    for (int block = root_ - 1; block >= lowest_; --block) {
      weights_.turns().move_to(block);
      gradients_.begin_collecting(block);
      working_ = activations_.working[static_cast<size_t>(block)];
      note(Moment::Phase::kBackward, block);
      working_ = 0;
      kept_ -= activations_.kept[static_cast<size_t>(block)];
      complete(block);
    }
    kept_ = 2 * activations_.tied_gradient;
    note(Moment::Phase::kBackward, root_);
    kept_ = 0;
    if (embedding_trains_ && !head_trains_) gradients_.begin_collecting(root_);
    if (embedding_trains_) complete(root_);
    gradients_.finish_reductions();
    weights_.end_backward();
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

  const Activations& activations_;
  StepWalk result_;
  Slabs slabs_;
  WeightWalk weights_;
  GradientWalk gradients_;
  int root_;
  bool reads_before_;
  bool reads_behind_;
  bool head_trains_;
  bool embedding_trains_;
  int lowest_;
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

StepWalk walk_step(const PlannedModel& model, const std::vector<std::vector<GroupPlan>>& units,
                   const Activations& activations, const Setup& setup) {
  constexpr int64_t kMostWalked = 4;
  const int64_t microbatches = std::min(setup.work.microbatches, kMostWalked);
  StepWalk result = Walk(model, units, activations, setup).steady_step(microbatches);
  if (setup.work.microbatches > kMostWalked) {
    const StepWalk shorter = Walk(model, units, activations, setup).steady_step(kMostWalked - 1);
    extend(result.calls, shorter.calls, setup.work.microbatches - kMostWalked);
  }
  return result;
}

}  // namespace fsdp::plan
