#include "fsdp/graph/recording.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// Same memory, another tensor with a version counter of its own.
at::Tensor same_memory(const at::Tensor& tensor) { return tensor.defined() ? tensor.variable_data() : tensor; }

std::vector<at::Tensor> with_gradients(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  return found;
}

// Whether a gradient stays where it is put: with a leaf, unless a hook takes it away. What the operator before a
// function gets, that is done with before the next replay writes over it.
bool keeps_gradient(const at::Tensor& tensor) {
  return tensor.is_leaf() && torch::autograd::impl::post_acc_grad_hooks(tensor) == nullptr;
}

// Operators of a recording name parameters too; those of the replays are announced instead.
template <class Work>
std::unique_ptr<RecordedWork> record_unobserved(WorkRecorder& recorder, const char* what, const Work& work) {
  const at::DisableRecordFunctionGuard silent;
  try {
    return recorder.record(work);
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kUsage, std::string("[graph] this ") + what +
                                       " cannot be recorded: " + error.what_without_backtrace() +
                                       ". A recorded function must not wait for the device, nor copy from memory that "
                                       "is not pinned; call it without a GraphedFunction.");
  }
}

std::vector<int64_t> versions_of(const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> versions;
  for (const at::Tensor& parameter : parameters) versions.push_back(parameter._version());
  return versions;
}

// While it lives, parameters have these versions.
class VersionsBefore {
 public:
  VersionsBefore(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& versions)
      : parameters_(parameters), now_(versions_of(parameters)) {
    set(versions);
  }
  ~VersionsBefore() { set(now_); }
  VersionsBefore(const VersionsBefore&) = delete;
  VersionsBefore& operator=(const VersionsBefore&) = delete;

 private:
  void set(const std::vector<int64_t>& versions) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      c10::VariableVersion counter = parameters_[i].unsafeGetTensorImpl()->version_counter();  // what views share, too
      counter.set_version(versions[i]);
    }
  }

  const std::vector<at::Tensor>& parameters_;
  std::vector<int64_t> now_;
};

}  // namespace

void announce_read(const std::vector<at::Tensor>& tensors) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fsdp::announce_read", "").typed<void(at::TensorList)>();
  if (!tensors.empty()) op.call(tensors);
}

std::vector<const void*> addresses_of(const std::vector<at::Tensor>& parameters) {
  std::vector<const void*> addresses;
  for (const at::Tensor& parameter : parameters) addresses.push_back(parameter.const_data_ptr());
  return addresses;
}

RecordingKey::RecordingKey(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& input : given) {
    inputs.push_back(
        {input.sizes().vec(), input.strides().vec(), input.scalar_type(), input.device(), input.requires_grad()});
  }
  addresses = addresses_of(parameters);
}

Recording::Recording(std::unique_ptr<WorkRecorder> recorder, const TensorListFunction& function,
                     const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> parameters)
    : recorder_(std::move(recorder)), parameters_(std::move(parameters)), addresses_(addresses_of(parameters_)) {
  for (const at::Tensor& input : inputs) {
    const at::TensorOptions options = input.options().requires_grad(false);
    const at::Tensor own = input.is_non_overlapping_and_dense()
                               ? at::empty_strided(input.sizes(), input.strides(), options)
                               : at::empty(input.sizes(), options);
    inputs_.push_back(own.requires_grad_(input.requires_grad()));
  }
  take_inputs(inputs);
  leaves_ = leaves_of(inputs_);
  record_forward(function);
  record_backward();
}

void Recording::record_forward(const TensorListFunction& function) {
  forward_ = record_unobserved(*recorder_, "forward", [&] {
    const at::AutoGradMode with_gradients(true);
    outputs_ = function(inputs_);
  });
  versions_ = versions_of(parameters_);
  for (const at::Tensor& output : outputs_) {
    FSDP_CHECK(output.defined(), "[graph] a recorded function returned an undefined tensor, expected defined ones.");
  }
}

void Recording::record_backward() {
  const std::vector<at::Tensor> roots = with_gradients(outputs_);
  for (const at::Tensor& root : roots)
    output_grads_.push_back(at::empty(root.sizes(), root.options().requires_grad(false)));
  if (roots.empty() || leaves_.empty()) return;
  backward_ = record_unobserved(*recorder_, "backward", [&] {
    grads_ = torch::autograd::grad(roots, leaves_, output_grads_, /*retain_graph=*/true, /*create_graph=*/false,
                                   /*allow_unused=*/true);
  });
}

std::vector<at::Tensor> Recording::leaves_of(const std::vector<at::Tensor>& inputs) const {
  std::vector<at::Tensor> leaves = with_gradients(inputs);
  for (const at::Tensor& parameter : with_gradients(parameters_)) leaves.push_back(parameter);
  return leaves;
}

void Recording::take_inputs(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) same_memory(inputs_[i]).copy_(inputs[i].detach());
}

Recording::Forward Recording::replay_forward(at::TensorList leaves) {
  forward_->replay();
  keeps_gradient_.clear();
  for (const at::Tensor& leaf : leaves) keeps_gradient_.push_back(keeps_gradient(leaf));
  Forward forward;
  std::transform(outputs_.begin(), outputs_.end(), std::back_inserter(forward.outputs), same_memory);
  forward.call = c10::make_intrusive<Call>(++calls_);
  latest_ = forward.call;
  return forward;
}

void Recording::take_output_grads(const std::vector<at::Tensor>& grads) {
  auto own = output_grads_.begin();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].requires_grad()) continue;
    grads[i].defined() ? own->copy_(grads[i]) : own->zero_();
    ++own;
  }
}

std::vector<at::Tensor> Recording::replay_backward(int64_t call, const std::vector<at::Tensor>& grads) {
  FSDP_CHECK(call == calls_, "[graph] a second backward through a call of a GraphedFunction came after its next call, ",
             "which wrote over its activations. Run it before, or call the function without a GraphedFunction.");
  const at::NoGradGuard no_grad;  // what is kept here must not become part of a graph of gradients
  announce_read(parameters_);
  take_output_grads(grads);
  if (addresses_of(parameters_) != addresses_) {
    // The activations are the replay's, and operators find the weights where they are now, as steps have written them
    // since. Observers would take this for a backward of its own.
    const at::DisableRecordFunctionGuard silent;
    const VersionsBefore versions(parameters_, versions_);
    return torch::autograd::grad(with_gradients(outputs_), leaves_, output_grads_, /*retain_graph=*/true,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }
  backward_->replay();
  // Of autograd::grad: nobody adds them to a leaf, and whoever asked may keep them beyond the next replay.
  const bool goes_to_caller = !torch::autograd::Engine::get_default_engine().is_checkpoint_valid();
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < grads_.size(); ++i) {
    const bool must_last = (goes_to_caller || keeps_gradient_[i]) && grads_[i].defined();
    result.push_back(must_last ? grads_[i].clone() : same_memory(grads_[i]));
  }
  return result;
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) { library.def("announce_read(Tensor[] tensors) -> ()"); }

TORCH_LIBRARY_IMPL(fsdp, CompositeExplicitAutograd, library) {
  library.impl("announce_read", [](at::TensorList) {});
}

}  // namespace fsdp
