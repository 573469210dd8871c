// What the dispatcher calls for operators inside a scope and for operators on tensors without memory.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string_view>

#include "fsdp/base/check.h"
#include "fsdp/deferred/tape.h"

namespace fsdp::construction {
namespace {

using torch::jit::Stack;

// Their results are values.
constexpr std::array<std::string_view, 5> kReaders = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero",
                                                      "aten::equal", "aten::allclose"};
// And theirs on an explicit device.
constexpr std::array<std::string_view, 2> kCopies = {"aten::to", "aten::_to_copy"};
constexpr std::string_view kSetDataCheck = "aten::_has_compatible_shallow_copy_type";
constexpr std::string_view kDetach = "aten::detach";

[[noreturn]] void refuse(const c10::OperatorHandle& op, const std::string& what) {
  FSDP_THROW(kUsage, "[deferred] ", op.operator_name(), " ", what, " Call fully_shard() or materialize() first, or ",
             "make what the constructor reads on an explicit device: torch::device(torch::kCPU).");
}

// One call of an operator, seen before it runs.
class Capture {
 public:
  Capture(const c10::OperatorHandle& op, Stack* stack);

  // Whether it makes, reads or writes tensors without memory.
  bool concerns_us() const { return !deferred_.empty() || makes_new_; }
  void run();

 private:
  void look_at(const c10::Argument& declared, const c10::IValue& argument);
  void look_at_device();
  bool answer_set_data_check();
  bool has_history() const;
  bool is_copy() const;
  bool needs_life() const;
  void bring_to_life() const;
  bool reads_values() const;
  void write_down();
  void check() const;
  std::shared_ptr<Tape> tape() const;
  Call call_of_arguments() const;
  void put_stand_ins();
  void run_without_memory(const Call& call);
  void show_shape(const Call& call);
  at::Tensor take_output(const at::Tensor& output, Call& call, const std::shared_ptr<Tape>& tape) const;
  void take_outputs(Call& call, const std::shared_ptr<Tape>& tape);
  void note_written(Call& call) const;

  const c10::OperatorHandle& op_;
  Stack* stack_;
  size_t first_;                         // of the arguments, on the stack
  std::vector<at::Tensor> deferred_;     // inputs without memory
  std::vector<at::Tensor> written_;      // those of them that it writes
  std::vector<at::Tensor> with_memory_;  // the other inputs
  bool writes_memory_ = false;
  bool makes_new_ = false;        // in a scope, on no explicit device
  bool is_factory_ = false;       // and from no tensors
  std::optional<size_t> device_;  // the argument's place
  bool on_meta_device_ = false;   // explicitly: taken over from a tensor without memory
};

Capture::Capture(const c10::OperatorHandle& op, Stack* stack)
    : op_(op), stack_(stack), first_(stack->size() - op.schema().arguments().size()) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    look_at(declared[i], (*stack)[first_ + i]);
    if (declared[i].name() == "device") device_ = first_ + i;
  }
  if (device_) look_at_device();
}

void Capture::look_at(const c10::Argument& declared, const c10::IValue& argument) {
  const bool written = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
  for_each_tensor(argument, [&](const at::Tensor& tensor) {
    if (DeferredTensor::of(tensor) != nullptr) {
      deferred_.push_back(tensor);
      if (written) written_.push_back(tensor);
    } else {
      with_memory_.push_back(tensor);
      writes_memory_ = writes_memory_ || written;
    }
  });
}

void Capture::look_at_device() {
  const c10::IValue& device = (*stack_)[*device_];
  on_meta_device_ = device.isDevice() && device.toDevice().is_meta();
  const bool has_tensors = !deferred_.empty() || !with_memory_.empty();
  makes_new_ = scope_tape() != nullptr && (on_meta_device_ || (device.isNone() && !has_tensors));
  is_factory_ = makes_new_ && !has_tensors;
}

// The question that set_data() asks. Tensors without memory take values of any kind, with memory or without.
bool Capture::answer_set_data_check() {
  if (op_.schema().name() != kSetDataCheck) return false;
  const at::Tensor self = (*stack_)[first_].toTensor(), source = (*stack_)[first_ + 1].toTensor();
  const bool usable = DeferredTensor::of(source) != nullptr || (source.layout() == at::kStrided && !source.is_meta());
  torch::jit::drop(*stack_, 2);
  stack_->emplace_back(DeferredTensor::of(self) != nullptr && usable);
  return true;
}

bool wants_gradient(const at::Tensor& tensor) {
  const DeferredTensor* deferred = DeferredTensor::of(tensor);
  return tensor.requires_grad() || (deferred != nullptr && deferred->lost_history());
}

// Whether autograd would remember the call, after construction.
bool Capture::has_history() const {
  return !scope_tape() && at::GradMode::is_enabled() && op_.schema().name() != kDetach &&
         std::any_of(deferred_.begin(), deferred_.end(), wants_gradient);
}

// What the program computes with after construction, forward and backward, it needs: a table that is no buffer, or a
// whole model that is not sharded. Changes without gradients are written down (initialisation), and Module::to(dtype).
bool Capture::needs_life() const {
  if (scope_tape()) return false;
  if (written_.empty() && !with_memory_.empty()) return true;
  return has_history() && !is_copy();
}

void Capture::bring_to_life() const {
  for (const at::Tensor& tensor : deferred_) {
    const DeferredTensor* deferred = DeferredTensor::of(tensor);
    if (deferred == nullptr) continue;  // came to life with one before
    if (at::GradMode::is_enabled() && deferred->lost_history()) {
      refuse(op_, c10::str("computes with a copy in another dtype of a tensor ", tensor.sizes(),
                           " that was made under DeferredInit, which would get no gradient."));
    }
    const std::shared_ptr<Tape> tape = deferred->tape();
    tape->materialize({deferred->storage_address()});
  }
}

bool Capture::is_copy() const {
  return std::find(kCopies.begin(), kCopies.end(), op_.schema().name()) != kCopies.end();
}

bool Capture::reads_values() const {
  const std::string& name = op_.schema().name();
  if (std::find(kReaders.begin(), kReaders.end(), name) != kReaders.end()) return true;
  return is_copy() && device_ && (*stack_)[*device_].isDevice() && !on_meta_device_;
}

void Capture::check() const {
  if (writes_memory_) {
    refuse(op_, c10::str("writes a tensor that has memory from a tensor ", deferred_.front().sizes(),
                         " that was made under DeferredInit and has none yet."));
  }
  for (const at::Tensor& tensor : with_memory_) {
    FSDP_CHECK(!tensor.is_meta(), "[deferred] ", op_.operator_name(), ": got a tensor ", tensor.sizes(),
               " on the meta device that was not made under DeferredInit. Make it inside the scope, on no device.");
  }
}

std::shared_ptr<Tape> Capture::tape() const {
  if (deferred_.empty()) return scope_tape();
  const std::shared_ptr<Tape>& tape = DeferredTensor::of(deferred_.front())->tape();
  for (const at::Tensor& tensor : deferred_) {
    FSDP_CHECK(DeferredTensor::of(tensor)->tape() == tape, "[deferred] ", op_.operator_name(),
               " computes with tensors of two DeferredInit scopes. Materialize those of the first scope before, or ",
               "construct everything in one scope.");
  }
  return tape;
}

Call Capture::call_of_arguments() const {
  Call call{op_, {}, {}, {}};
  for (size_t i = first_; i < stack_->size(); ++i) call.operands.emplace_back((*stack_)[i]);
  if (on_meta_device_) call.operands[*device_ - first_].replace(c10::Device(c10::kCPU));
  return call;
}

at::Tensor stand_in(const at::Tensor& tensor) {
  if (DeferredTensor::of(tensor) != nullptr || !tensor.defined()) return tensor;
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// The same argument or result with `replace` applied to its tensors.
template <class Replace>
c10::IValue with_tensors(const c10::IValue& argument, const Replace& replace) {
  if (argument.isTensor()) return replace(argument.toTensor());
  bool has_tensors = false;
  for_each_tensor(argument, [&](const at::Tensor&) { has_tensors = true; });
  if (!has_tensors) return argument;
  c10::impl::GenericList list(argument.toList().elementType());
  for (const c10::IValue& element : argument.toListRef()) list.push_back(with_tensors(element, replace));
  return list;
}

// Shapes are computed without values, on the meta device throughout.
void Capture::put_stand_ins() {
  for (size_t i = first_; i < stack_->size(); ++i) (*stack_)[i] = with_tensors((*stack_)[i], stand_in);
  if (makes_new_) (*stack_)[*device_] = c10::Device(c10::kMeta);
}

void Capture::run_without_memory(const Call& call) {
  const at::AutoDispatchBelowADInplaceOrView no_history;
  put_stand_ins();
  try {
    op_.callBoxed(stack_);
  } catch (const c10::NotImplementedError&) {
    if (!is_factory_) {
      refuse(op_, "has no form without values: a constructor called it on a tensor that has no memory yet.");
    }
    show_shape(call);
  }
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// A factory that the meta device lacks (randperm) runs once for its shape; the random numbers are not used up.
void Capture::show_shape(const Call& call) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  stack_->resize(first_);
  for (const Operand& operand : call.operands) {
    stack_->push_back(operand.restore());
    if (stack_->back().isGenerator()) generator = stack_->back().toGenerator();
  }
  const at::Tensor state = state_of(generator);
  op_.callBoxed(stack_);
  set_state(generator, state);
  for (size_t i = first_; i < stack_->size(); ++i) (*stack_)[i] = with_tensors((*stack_)[i], stand_in);
}

at::Tensor Capture::take_output(const at::Tensor& output, Call& call, const std::shared_ptr<Tape>& tape) const {
  const auto is_input = [&](const at::Tensor& input) { return input.is_same(output); };
  if (!output.defined()) return output;
  if (!output.is_meta() || std::any_of(deferred_.begin(), deferred_.end(), is_input)) {
    call.outputs.emplace_back();
    return output;
  }
  const auto value = std::make_shared<Value>();
  const c10::TensorImpl* meta = output.unsafeGetTensorImpl();
  auto deferred = c10::make_intrusive<DeferredTensor>(meta, meta->version_counter(), true, tape, value);
  if (has_history()) deferred->lose_history();
  call.outputs.push_back({value, deferred->unsafe_storage()});
  return at::Tensor(std::move(deferred));
}

void Capture::take_outputs(Call& call, const std::shared_ptr<Tape>& tape) {
  const auto take = [&](const at::Tensor& output) { return take_output(output, call, tape); };
  for (size_t i = first_; i < stack_->size(); ++i) (*stack_)[i] = with_tensors((*stack_)[i], take);
}

void Capture::note_written(Call& call) const {
  for (const at::Tensor& tensor : written_) call.written.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage());
}

void Capture::run() {
  if (answer_set_data_check()) return;
  if (!deferred_.empty() && reads_values()) {
    refuse(op_, c10::str("reads the values of a tensor ", deferred_.front().sizes(),
                         " that was made under DeferredInit and has no memory yet."));
  }
  if (needs_life()) {
    bring_to_life();
    op_.callBoxed(stack_);
    return;
  }
  write_down();
}

void Capture::write_down() {
  if (!deferred_.empty()) check();
  const std::shared_ptr<Tape> destination = tape();
  Call call = call_of_arguments();
  run_without_memory(call);
  take_outputs(call, destination);
  // Where the dtype is the program's default, it is today's.
  const std::optional<int> dtype = op_.schema().argumentIndexWithName("dtype");
  if (is_factory_ && dtype && (*stack_)[first_].isTensor()) {
    call.operands[static_cast<size_t>(*dtype)].replace((*stack_)[first_].toTensor().scalar_type());
  }
  note_written(call);
  const auto is_new = [](const Call::Output& output) { return !output.value.expired(); };
  if (!call.written.empty() || std::any_of(call.outputs.begin(), call.outputs.end(), is_new)) {
    destination->add(std::move(call));
  }
}

void capture(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::DeferredInit);
  Capture seen(op, stack);
  if (seen.concerns_us()) {
    seen.run();
  } else {
    op.callBoxed(stack);
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
}

}  // namespace
}  // namespace fsdp::construction
