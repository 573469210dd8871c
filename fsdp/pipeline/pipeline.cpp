#include "fsdp/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <string>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"
#include "fsdp/pipeline/relay.h"
#include "fsdp/pipeline/split_backward.h"
#include "fsdp/pipeline/ties.h"
#include "fsdp/pipeline/uses.h"
#include "fsdp/unit/scopes.h"
#include "fsdp/unit/unit_state.h"

namespace fsdp::pipeline {
namespace {

// What a stage reads of the one before it: the memory of a leaf, as a tensor into which the program may write.
class Entry : public torch::autograd::Function<Entry> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& leaf) { return leaf.detach(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

// Between its forward and its backward.
struct InFlight {
  at::Tensor input;   // a leaf; undefined for the first stage
  at::Tensor output;  // of the last stage: the microbatch's part of the loss
};

// Weights that stay gathered from a forward to its backward stay so until the last backward of the step.
class HeldWeights {
 public:
  explicit HeldWeights(const std::vector<Stage>& stages) {
    for (const Stage& stage : stages) {
      if (!stage.unit) continue;
      for (UnitState* unit : stage.unit->state()->subtree()) {
        const bool waits = std::any_of(unit->groups.begin(), unit->groups.end(), [](const auto& group) {
          return group->strategy_traits().gather == GatherTiming::kPerForwardAndBackward;
        });
        if (waits || !unit->reshard_after_backward) continue;
        unit->reshard_after_backward = false;
        held_.emplace_back(stage.unit->state(), unit);
      }
    }
  }
  ~HeldWeights() {
    for (const auto& [root, unit] : held_) unit->reshard_after_backward = true;
  }
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;

  void let_go(const Stage& stage) {
    for (const auto& [root, unit] : held_) {
      if (stage.unit && root == stage.unit->state()) unit->reshard_after_backward = true;
    }
  }

 private:
  std::vector<std::pair<std::shared_ptr<UnitState>, UnitState*>> held_;  // its root keeps a unit alive
};

c10::Device device_of(const std::vector<Stage>& stages) {
  for (const Stage& stage : stages) {
    if (!stage.leaves.empty()) return stage.leaves.front().device();
  }
  return c10::kCPU;
}

std::vector<at::Tensor> leaves_of(const std::vector<Stage>& stages) {
  std::vector<at::Tensor> leaves;
  for (const Stage& stage : stages) leaves.insert(leaves.end(), stage.leaves.begin(), stage.leaves.end());
  return leaves;
}

std::vector<std::vector<Turn>> turns_of_all(const std::function<std::vector<Turn>(int rank)>& turns_of_rank,
                                            int ranks) {
  std::vector<std::vector<Turn>> turns;
  for (int rank = 0; rank < ranks; ++rank) turns.push_back(turns_of_rank(rank));
  return turns;
}

at::Tensor output_of(const Stage& stage, const Turn& turn, const at::Tensor& x) {
  at::Tensor y = stage.forward(x, turn.microbatch);
  FSDP_CHECK(y.defined() && y.is_floating_point(), "[pipeline] stage ", turn.stage, " returned ",
             y.defined() ? c10::str("a tensor of ", y.scalar_type()) : std::string("an undefined tensor"),
             ", expected one of a floating-point type.");
  return y;
}

}  // namespace

// A forward and a backward of one batch, turn by turn.
class Pipeline::Step {
 public:
  Step(const std::vector<Stage>& stages, Order order, const Shape& shape, const std::vector<at::Tensor>& inputs,
       const Loss& loss, LossesAre losses, const Notes& notes)
      : stages_(stages),
        order_(order),
        shape_(shape),
        inputs_(inputs),
        loss_(loss),
        divisor_(losses == LossesAre::kAveraged ? shape.microbatches : 1),
        notes_(notes),
        held_(stages) {
    for (const Stage& stage : stages) backwards_left_[root_of(stage)] += shape.microbatches;
  }

  Parcel compute(const Turn& turn, const Parcel& given) {
    if (turn.pass == Pass::kForward) return forward(turn, given);
    return turn.pass == Pass::kBackward ? backward(turn, given) : Parcel{weights(turn), {}};
  }
  double loss() const { return total_.defined() ? total_.item<double>() : 0; }

 private:
  const Stage& stage_of(const Turn& turn) const { return stages_[static_cast<size_t>(turn.stage / shape_.ranks)]; }
  static UnitState* root_of(const Stage& stage) { return stage.unit ? stage.unit->state().get() : nullptr; }
  bool is_at_end(const Turn& turn) const { return turn.stage + 1 == shape_.stages(); }

  Parcel forward(const Turn& turn, const Parcel& given) {
    const bool is_first = turn.stage == 0;
    if (!is_first) given.tensor.requires_grad_();
    const at::Tensor x = is_first ? inputs_[static_cast<size_t>(turn.microbatch)] : Entry::apply(given.tensor);
    Parcel result{output_of(stage_of(turn), turn, x), {}};
    if (notes_.after_forward) result.note = notes_.after_forward(given.note, turn.stage, turn.microbatch);
    if (is_at_end(turn)) {
      result.tensor = part_of_loss(result.tensor, turn.microbatch);
      notes_at_end_[turn.microbatch] = result.note;
    }
    uses_.keep(turn, root_of(stage_of(turn)));
    in_flight_[{turn.stage, turn.microbatch}] = {is_first ? at::Tensor() : given.tensor, result.tensor};
    return result;
  }

  at::Tensor part_of_loss(const at::Tensor& y, int microbatch) {
    const at::Tensor loss = loss_(y, microbatch);
    FSDP_CHECK(loss.defined() && loss.numel() == 1 && loss.requires_grad(), "[pipeline] the loss of microbatch ",
               microbatch, ": got ", loss.defined() ? c10::str(loss.sizes()) : std::string("an undefined tensor"),
               loss.defined() && !loss.requires_grad() ? " without gradient" : "",
               ", expected a scalar that depends on the last stage's output.");
    const at::Tensor part = divisor_ == 1 ? loss : loss / divisor_;
    const at::Tensor value = part.detach().reshape({1}).to(at::kDouble);
    total_ = total_.defined() ? total_ + value : value;
    return part;
  }

  Parcel backward(const Turn& turn, const Parcel& given) {
    at::Tensor note = is_at_end(turn) ? notes_at_end_.extract(turn.microbatch).mapped() : given.note;
    if (notes_.before_backward) note = notes_.before_backward(note, turn.stage, turn.microbatch);
    const InFlight now = std::move(in_flight_.extract({turn.stage, turn.microbatch}).mapped());
    return {is_split(order_, turn.stage) ? input_part(turn, now, given.tensor) : whole(turn, now, given.tensor), note};
  }

  at::Tensor whole(const Turn& turn, const InFlight& now, const at::Tensor& gradient) {
    const std::unique_ptr<Microbatch> scope = next_gradients(turn);
    if (now.output.requires_grad()) torch::autograd::backward({now.output}, {gradient});
    if (!now.input.defined()) return {};
    return now.input.grad().defined() ? now.input.grad() : at::zeros_like(now.input);
  }

  at::Tensor input_part(const Turn& turn, const InFlight& now, const at::Tensor& gradient) {
    const Stage& stage = stage_of(turn);
    if (stage.unit) stage.unit->state()->root().had_gradients = false;
    InputPart part;
    if (now.output.requires_grad()) part = run_input_part(now.output, gradient, now.input);
    // The step's last turn would reduce without them.
    FSDP_CHECK(!stage.unit || !stage.unit->state()->root().had_gradients, "[pipeline] stage ", turn.stage,
               ": got gradients of weights with that of its input, expected them later. Recomputation gives all at "
               "once: switch it off, or use pipeline::Order::k1F1B.");
    weights_parts_[turn.microbatch] = std::move(part.rest);
    return part.gradient.defined() ? part.gradient : at::zeros_like(now.input);
  }

  at::Tensor weights(const Turn& turn) {
    const std::unique_ptr<Microbatch> scope = next_gradients(turn);
    run_weights_part(weights_parts_.extract(turn.microbatch).mapped());
    return {};
  }

  // Of a stage's weights, while the scope lives.
  std::unique_ptr<Microbatch> next_gradients(const Turn& turn) {
    const Stage& stage = stage_of(turn);
    uses_.give_back(turn);
    const bool is_last = --backwards_left_[root_of(stage)] == 0;
    if (is_last) held_.let_go(stage);
    return stage.unit ? std::make_unique<Microbatch>(*stage.unit, is_last) : nullptr;
  }

  const std::vector<Stage>& stages_;
  Order order_;
  Shape shape_;
  const std::vector<at::Tensor>& inputs_;
  const Loss& loss_;
  int divisor_;
  const Notes& notes_;
  HeldWeights held_;
  Uses uses_;
  std::map<const UnitState*, int> backwards_left_;     // of stages with one root together
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by stage and microbatch
  std::map<int, WeightsPart> weights_parts_;           // by microbatch, of the only stage
  std::map<int, at::Tensor> notes_at_end_;             // by microbatch, of the last stage: they go back
  at::Tensor total_;                                   // [1], fp64
};

Pipeline::Pipeline(const Mesh& mesh, std::vector<Stage> stages, Order order)
    : stages_(std::move(stages)), order_(order) {
  FSDP_CHECK(mesh.has("pp"), "[pipeline] mesh ", mesh.describe(),
             ": got no axis 'pp', expected one. Use Mesh::parallel(world, {{\"pp\", ranks}}).");
  for (const Stage& stage : stages_) {
    FSDP_CHECK(stage.forward, "[pipeline] got a stage without a forward, expected a function of a tensor.");
  }
  comm_ = mesh.world().connection->group(mesh.ranks("pp"));
  agree(c10::str(stages_.size(), " stages in order ", static_cast<int>(order)));
  ties_ = std::make_shared<Ties>(mesh, *comm_, stages_);
}

// COLLECTIVE. What every rank must say alike.
void Pipeline::agree(const std::string& text) const {
  const Backstage backstage;
  constexpr int64_t kWidth = 64;
  FSDP_ASSERT(static_cast<int64_t>(text.size()) < kWidth, text);
  const at::Tensor own = at::zeros({kWidth}, at::kByte), all = at::empty({comm_->size() * kWidth}, at::kByte);
  std::copy(text.begin(), text.end(), own.mutable_data_ptr<uint8_t>());
  comm_->all_gather(all, own, {"agree over pp", "pipeline", ""}).wait();
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const std::string theirs(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * kWidth);
    FSDP_CHECK(theirs == text, "[pipeline] rank ", comm_->ranks()[static_cast<size_t>(rank)], " has ", theirs,
               ", this one ", text, ", expected the same on all ranks along 'pp'.");
  }
}

Shape Pipeline::shape_for(const std::vector<at::Tensor>& inputs, WithNotes notes) const {
  const Shape shape{comm_->size(), static_cast<int>(stages_.size()), static_cast<int>(inputs.size())};
  agree(c10::str(inputs.size(), " microbatches", notes == WithNotes::kYes ? " with notes" : ""));
  check(shape);
  return shape;
}

bool Pipeline::has_first_stage() const { return comm_->rank() == 0; }
bool Pipeline::has_last_stage() const { return comm_->rank() == comm_->size() - 1; }

double Pipeline::step(const std::vector<at::Tensor>& inputs, const Loss& loss, LossesAre losses, const Notes& notes) {
  FSDP_CHECK(bool{notes.after_forward} == bool{notes.before_backward},
             "[pipeline] got one of the two functions of Notes, expected both or none.");
  const auto with_notes = notes.after_forward ? WithNotes::kYes : WithNotes::kNo;
  const Shape shape = shape_for(inputs, with_notes);
  check(order_, shape);
  FSDP_CHECK(loss || !has_last_stage(), "[pipeline] got no loss on the rank of the last stage, expected a function.");
  const at::AutoGradMode with_gradients(true);
  ties_->begin_step();
  Step step(stages_, order_, shape, inputs, loss, losses, notes);
  Relay relay(comm_, shape, turns_of_all([&](int rank) { return turns_of(order_, shape, rank); }, shape.ranks),
              device_of(stages_), with_notes);
  relay.run([&step](const Turn& turn, const Parcel& given) { return step.compute(turn, given); });
  ties_->add_up();
  const Backstage backstage;
  const at::Tensor total = at::full({1}, step.loss(), at::kDouble);
  comm_->broadcast(total, comm_->size() - 1, {"hand out the loss over pp", "pipeline", ""});
  return total.item<double>();
}

std::vector<at::Tensor> Pipeline::forward(const std::vector<at::Tensor>& inputs) {
  const Shape shape = shape_for(inputs, WithNotes::kNo);
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<ForwardOnly>> scopes;
  for (const Stage& stage : stages_) {
    if (stage.unit) scopes.push_back(std::make_unique<ForwardOnly>(*stage.unit));
  }
  std::vector<at::Tensor> outputs;
  Relay relay(comm_, shape, turns_of_all([&](int rank) { return forward_turns_of(shape, rank); }, shape.ranks),
              device_of(stages_));
  relay.run([&](const Turn& turn, const Parcel& given) {
    const at::Tensor x = turn.stage == 0 ? inputs[static_cast<size_t>(turn.microbatch)] : given.tensor;
    at::Tensor y = output_of(stages_[static_cast<size_t>(turn.stage / shape.ranks)], turn, x);
    if (turn.stage + 1 == shape.stages()) outputs.push_back(y);
    return Parcel{y, {}};
  });
  return outputs;
}

GradNorm Pipeline::grad_norm(double max_norm, double norm_type) const {
  return fsdp::grad_norm(ties_->counted(leaves_of(stages_)), max_norm, norm_type, comm_);
}

at::Tensor Pipeline::clip_grad_norm_(double max_norm, double norm_type) const {
  const GradNorm found = grad_norm(max_norm, norm_type);
  const Backstage backstage;
  if (found.factor.is_cpu() && found.factor.item<double>() >= 1) return found.norm;
  for (const at::Tensor& leaf : leaves_of(stages_)) {
    if (leaf.grad().defined()) leaf.grad().mul_(found.factor.to(leaf.device()));
  }
  return found.norm;
}

}  // namespace fsdp::pipeline
