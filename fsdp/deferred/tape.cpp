#include "fsdp/deferred/tape.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp::construction {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// The same bytes in a storage of their own.
c10::Storage copy_of(const c10::Storage& storage) {
  const auto nbytes = static_cast<int64_t>(storage.nbytes());
  return at::empty({0}, at::kByte).set_(storage, 0, {nbytes}, {1}).clone().storage();
}

at::Tensor moved_to(const at::Tensor& tensor, const c10::Storage& storage) {
  return at::empty({0}, tensor.options()).set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

const c10::StorageImpl* storage_address(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

std::shared_ptr<Tape>& scope_tape() {
  thread_local std::shared_ptr<Tape> tape;
  return tape;
}

void for_each_tensor(const c10::IValue& argument, const std::function<void(const at::Tensor&)>& visit) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) visit(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) for_each_tensor(element, visit);
  }
}

// ---- DeferredTensor

DeferredTensor::DeferredTensor(const c10::TensorImpl* meta, const c10::VariableVersion& version,
                               bool allow_metadata_change, std::shared_ptr<Tape> tape, ValuePtr value)
    : TensorImpl(c10::Storage(meta->unsafe_storage()), meta->key_set(), meta->dtype()) {
  copy_tensor_metadata(meta, this, version, allow_metadata_change);
  key_set_ = key_set_.add(kKey);
  enter(std::move(tape), std::move(value));
}

DeferredTensor::~DeferredTensor() { leave(); }

DeferredTensor* DeferredTensor::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kKey)) return nullptr;
  return dynamic_cast<DeferredTensor*>(tensor.unsafeGetTensorImpl());
}

void DeferredTensor::enter(std::shared_ptr<Tape> tape, ValuePtr value) {
  tape_ = std::move(tape);
  value_ = std::move(value);
  tape_->tensors_.insert(this);
}

void DeferredTensor::leave() {
  if (tape_) tape_->tensors_.erase(this);
  value_.reset();
  tape_.reset();
}

void DeferredTensor::come_to_life() {
  const at::Tensor real = value_->tensor;
  FSDP_ASSERT(real.defined() && real.sizes() == sizes() && real.dtype() == dtype(), "A tensor ", sizes(),
              " came to life as ", real.defined() ? c10::str(real.sizes()) : "nothing", ".");
  TensorImpl::shallow_copy_from(real.getIntrusivePtr());
  set_version_counter(real.unsafeGetTensorImpl()->version_counter());
  leave();
}

void DeferredTensor::release_resources() {
  leave();
  TensorImpl::release_resources();
}

void DeferredTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  TensorImpl::shallow_copy_from(source);
  leave();
  const auto* deferred = dynamic_cast<const DeferredTensor*>(source.get());
  if (deferred != nullptr && deferred->value_) enter(deferred->tape_, deferred->value_);
}

c10::intrusive_ptr<c10::TensorImpl> DeferredTensor::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                            bool allow_metadata_change) const {
  if (!value_) return TensorImpl::shallow_copy_and_detach(version, allow_metadata_change);
  return c10::make_intrusive<DeferredTensor>(this, version, allow_metadata_change, tape_, value_);
}

c10::intrusive_ptr<c10::TensorImpl> DeferredTensor::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                            bool allow_metadata_change) const {
  const c10::VariableVersion kept = std::move(version);
  return shallow_copy_and_detach(kept, allow_metadata_change);
}

// ---- Operand

Operand::Element::Element(const c10::IValue& argument) : plain(argument) {
  if (!argument.isTensor() || !argument.toTensor().defined()) return;
  if (const DeferredTensor* deferred = DeferredTensor::of(argument.toTensor())) {
    value = deferred->value();
    plain = {};
  } else if (!argument.toTensor().is_inference()) {
    version = argument.toTensor()._version();
  }
}

c10::IValue Operand::Element::restore() const {
  if (value) {
    FSDP_ASSERT(value->tensor.defined(), "A call reads a tensor that was not made before it.");
    return value->tensor;
  }
  FSDP_CHECK(version == kUnknownVersion || plain.toTensor()._version() == version, "[deferred] a tensor ",
             plain.toTensor().sizes(), " that a constructor computed with was changed in place before the module was ",
             "materialized. Materialize first, or let the constructor have a clone().");
  return plain;
}

Operand::Operand(const c10::IValue& argument) {
  bool has_tensors = false;
  if (argument.isList()) for_each_tensor(argument, [&](const at::Tensor&) { has_tensors = true; });
  if (!has_tensors) {
    elements_.emplace_back(argument);
    return;
  }
  element_type_ = argument.toList().elementType();
  for (const c10::IValue& element : argument.toListRef()) elements_.emplace_back(element);
}

c10::IValue Operand::restore() const {
  if (!element_type_) return elements_.front().restore();
  c10::impl::GenericList list(element_type_);
  for (const Element& element : elements_) list.push_back(element.restore());
  return list;
}

void Operand::for_each_value(const std::function<void(Value&)>& visit) const {
  for (const Element& element : elements_) {
    if (element.value) visit(*element.value);
  }
}

// ---- Call

bool Call::concerns(const Storages& storages) const {
  const auto wanted = [&](const c10::Storage& storage) { return storages.count(storage.unsafeGetStorageImpl()) > 0; };
  for (const c10::Storage& storage : written) {
    if (wanted(storage)) return true;
  }
  for (const Output& output : outputs) {
    if (!output.value.expired() && wanted(output.storage)) return true;
  }
  return false;
}

bool Call::only_allocates() const {
  const std::string& name = op.schema().name();
  return name == "aten::empty" || name == "aten::empty_strided";
}

void Call::carry_out() const {
  torch::jit::Stack stack;
  for (const Operand& operand : operands) stack.push_back(operand.restore());
  op.callBoxed(&stack);
  size_t next = 0;
  const auto take = [&](const at::Tensor& tensor) {
    FSDP_ASSERT(next < outputs.size(), op.operator_name(), " returned more tensors than when it was put off.");
    if (const ValuePtr value = outputs[next++].value.lock()) value->tensor = tensor;
  };
  for (const c10::IValue& result : stack) for_each_tensor(result, take);
  FSDP_ASSERT(next == outputs.size(), op.operator_name(), " returned fewer tensors than when it was put off.");
}

// ---- Tape

Tape::Tape() {
  static std::atomic<int64_t> next{0};
  number_ = next++;
}

// Which of the first `count` calls cannot wait.
std::vector<bool> Tape::find_needed(size_t count, const Storages& wanted) const {
  std::vector<bool> needed(count);
  std::unordered_set<const Value*> read;
  for (size_t i = count; i-- > 0;) {
    const Call& call = calls_[i];
    needed[i] = !call.only_allocates() || call.concerns(wanted);
    for (const Call::Output& output : call.outputs) needed[i] = needed[i] || read.count(output.value.lock().get()) > 0;
    if (!needed[i]) continue;
    for (const Operand& operand : call.operands) operand.for_each_value([&](Value& value) { read.insert(&value); });
  }
  return needed;
}

// Puts what can wait behind the first calls of which the result is the number; drops what nobody can ask for.
size_t Tape::postpone_allocations(size_t count, const Storages& wanted) {
  const std::vector<bool> needed = find_needed(count, wanted);
  std::deque<Call> first, waiting;
  for (size_t i = 0; i < count; ++i) {
    const auto is_gone = [](const Call::Output& output) { return output.value.expired(); };
    const bool is_dead = std::all_of(calls_[i].outputs.begin(), calls_[i].outputs.end(), is_gone);
    if (needed[i]) {
      first.push_back(std::move(calls_[i]));
    } else if (!is_dead) {
      waiting.push_back(std::move(calls_[i]));
    }
  }
  const size_t now = first.size();
  calls_.erase(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::deque<Call>* part : {&waiting, &first}) {
    calls_.insert(calls_.begin(), std::make_move_iterator(part->begin()), std::make_move_iterator(part->end()));
  }
  return now;
}

void Tape::carry_out(size_t count, const Storages& wanted) {
  const c10::impl::ExcludeDispatchKeyGuard ordinary_tensors(kKey);
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  for (size_t left = postpone_allocations(count, wanted); left > 0; --left) {
    calls_.front().carry_out();
    calls_.pop_front();
  }
}

void Tape::hand_over(const Storages& wanted) {
  std::vector<DeferredTensor*> chosen;
  for (DeferredTensor* tensor : tensors_) {
    if (wanted.count(tensor->storage_address()) > 0) chosen.push_back(tensor);
  }
  Storages handed_over;
  for (DeferredTensor* tensor : chosen) {
    tensor->come_to_life();
    handed_over.insert(tensor->storage_address());
  }
  keep_copies_for_readers(handed_over);
}

// The program may change or drop what it got; calls that are still to come read what was there before.
void Tape::keep_copies_for_readers(const Storages& handed_over) {
  const c10::impl::ExcludeDispatchKeyGuard ordinary_tensors(kKey);
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies;
  const auto keep = [&](Value& value) {
    if (!value.tensor.defined() || handed_over.count(storage_address(value.tensor)) == 0) return;
    c10::Storage& copy = copies[storage_address(value.tensor)];
    if (!copy) copy = copy_of(value.tensor.storage());
    value.tensor = moved_to(value.tensor, copy);
  };
  for (const Call& call : calls_) {
    for (const Operand& operand : call.operands) operand.for_each_value(keep);
  }
}

void Tape::materialize(const Storages& wanted) {
  size_t count = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].concerns(wanted)) count = i + 1;
  }
  carry_out(count, wanted);
  hand_over(wanted);
}

void Tape::materialize_all() {
  Storages all;
  for (const DeferredTensor* tensor : tensors_) all.insert(tensor->storage_address());
  carry_out(calls_.size(), all);
  hand_over(all);
}

}  // namespace fsdp::construction
