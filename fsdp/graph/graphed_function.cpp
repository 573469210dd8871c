#include "fsdp/graph/graphed_function.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/graph/recording.h"
#include "kernels/base/once_differentiable.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What autograd sees of a replay.
struct ReplayedCall : torch::autograd::Function<ReplayedCall> {
  static variable_list forward(AutogradContext* context, at::TensorList leaves,
                               const c10::intrusive_ptr<Recording>& recording) {
    Recording::Forward forward = recording->replay_forward(leaves);
    context->saved_data["recording"] = c10::IValue::make_capsule(recording);
    context->saved_data["number"] = forward.call->number;
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(forward.call));
    context->set_materialize_grads(false);
    return forward.outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto recording = c10::static_intrusive_pointer_cast<Recording>(context->saved_data["recording"].toCapsule());
    variable_list result = recording->replay_backward(context->saved_data["number"].toInt(), grads);
    context->saved_data.erase("call");  // the graph itself may live on
    result.emplace_back();              // of the recording
    return kernels::once_differentiable("graph", "the function without a GraphedFunction", grads, std::move(result));
  }
};

bool are_on(c10::DeviceType type, const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == type; });
}

}  // namespace

struct GraphedFunction::State {
  // A kind of call that was met: how often it ran as it is, then its recording.
  struct Kind {
    RecordingKey key;
    int warm_ups = 0;
    c10::intrusive_ptr<Recording> recording;
  };

  Kind* find(const RecordingKey& key) {
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.key == key; });
    if (found != kinds.end()) return &*found;
    if (kinds.size() == kMostRecordings) return nullptr;
    kinds.push_back({key, 0, nullptr});
    return &kinds.back();
  }

  std::vector<at::Tensor> parameters;
  std::vector<Kind> kinds;
  GraphCounters counters;
};

GraphedFunction::GraphedFunction(std::vector<at::Tensor> parameters) : state_(std::make_unique<State>()) {
  state_->parameters = std::move(parameters);
}

GraphedFunction::~GraphedFunction() = default;
GraphedFunction::GraphedFunction(GraphedFunction&&) noexcept = default;
GraphedFunction& GraphedFunction::operator=(GraphedFunction&&) noexcept = default;

const GraphCounters& GraphedFunction::counters() const { return state_->counters; }

std::vector<at::Tensor> GraphedFunction::operator()(const TensorListFunction& function,
                                                    const std::vector<at::Tensor>& inputs) {
  FSDP_CHECK(function != nullptr, "[graph] got an empty function.");
  const auto run_plainly = [&] {
    ++state_->counters.eager;
    return function(inputs);
  };
  if (!at::GradMode::is_enabled() || inputs.empty() || !inputs[0].defined()) return run_plainly();
  if (!are_on(inputs[0].device().type(), inputs)) return run_plainly();
  const MakeWorkRecorder make_recorder = find_work_recorder(inputs[0].device().type());
  if (make_recorder == nullptr) return run_plainly();
  announce_read(state_->parameters);
  State::Kind* kind = state_->find({inputs, state_->parameters});
  if (kind == nullptr || kind->warm_ups < kWarmUps) {
    if (kind != nullptr) ++kind->warm_ups;
    return run_plainly();
  }
  if (!kind->recording) {
    kind->recording =
        c10::make_intrusive<Recording>(make_recorder(inputs[0].device()), function, inputs, state_->parameters);
    ++state_->counters.recorded;
  }
  if (kind->recording->is_waiting_for_backward()) return run_plainly();
  ++state_->counters.replayed;
  kind->recording->take_inputs(inputs);
  const variable_list leaves = kind->recording->leaves_of(inputs);
  return ReplayedCall::apply(at::TensorList(leaves), kind->recording);
}

}  // namespace fsdp
