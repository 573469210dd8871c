#include "fsdp/unit/observer.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <mutex>
#include <utility>

#include "fsdp/group/touch_table.h"
#include "fsdp/unit/context.h"
#include "fsdp/unit/gradient_slots.h"

namespace fsdp {
namespace {

// What of ours one operator names among its inputs, collected without allocating.
class InputScan {
 public:
  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isList()) {
      add_list(value);
    }
  }

  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const TouchTable::Entry entry = TouchTable::instance().find(storage);
    if (entry.group == nullptr) return;
    if (entry.role == Role::kMainWeight) {
      main_weights_.emplace_back(entry.group, tensor);
      return;
    }
    // Main grads may be freed within a backward, and their address be another's before its end.
    if (entry.role == Role::kMainGrad && !entry.group->gradients().main_grad().is_at(storage)) return;
    const size_t index = entry.group->parameter_at(tensor.storage_offset());
    const Touch named{entry.unit, entry.group, index, tensor.requires_grad()};
    (entry.role == Role::kUnsharded ? touches_ : entry.role == Role::kMainGrad ? main_grads_ : marks_).push_back(named);
  }

  // Gathered weights.
  c10::ArrayRef<Touch> touches() const { return touches_; }
  // Gradients of the module's parameters, which are marks.
  c10::ArrayRef<Touch> marks() const { return marks_; }
  // Slices of gradients, in the leaves; `index` means nothing there.
  c10::ArrayRef<Touch> main_grads() const { return main_grads_; }
  using MainWeight = std::pair<ParameterGroup*, at::Tensor>;
  // Of which groups it names the main weight, and by which tensors.
  c10::ArrayRef<MainWeight> main_weights() const { return main_weights_; }
  bool empty() const { return touches_.empty() && marks_.empty() && main_grads_.empty() && main_weights_.empty(); }

 private:
  // A list has one element type; the first defined element tells (lists of optional tensors hold None too).
  void add_list(const c10::IValue& value) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) {
        add(item.toTensor());
      } else if (!item.isNone()) {
        return;
      }
    }
  }

  c10::SmallVector<Touch, 8> touches_, marks_, main_grads_;
  c10::SmallVector<MainWeight, 2> main_weights_;
};

// What the operator's schema says it writes. Main weights take note; a gathered weight is written for all ranks, or
// refuses, unless it is the main weight itself and no other rank has it.
void report_writes(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema.has_value() || !schema->is_mutable()) return;
  const auto inputs = function.inputs();
  const auto& arguments = schema->arguments();
  for (size_t i = 0; i < arguments.size() && i < inputs.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    InputScan written;
    written.add(inputs[i]);
    for (const auto& [group, tensor] : written.main_weights()) group->note_main_weight_write(tensor);
    for (const Touch& touch : written.touches()) {
      if (touch.group->residence() == Residence::kAliased && touch.group->is_alone()) {
        const bool is_leaf = inputs[i].isTensor() && inputs[i].toTensor().is_same(touch.group->leaf(touch.index));
        if (is_leaf) touch.group->note_leaf_write(touch.index);
        continue;
      }
      touch.unit->context->note_write(touch, function.name());
    }
  }
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  InputScan scan;
  for (const c10::IValue& input : function.inputs()) scan.add(input);
  if (scan.empty()) return nullptr;
  if (!scan.touches().empty()) scan.touches().front().unit->context->touch(scan.touches(), function.name());
  for (const Touch& slice : scan.main_grads()) slice.unit->context->note_slice_use(slice, function.name());
  for (const Touch& mark : scan.marks()) mark.unit->context->note_mark_use(mark, function.name());
  report_writes(function);
  return nullptr;
}

}  // namespace

void observe_read(at::TensorList tensors) {
  InputScan scan;
  for (const at::Tensor& tensor : tensors) scan.add(tensor);
  if (scan.touches().empty()) return;
  Context& context = *scan.touches().front().unit->context;
  context.rethrow_deferred();
  context.touch(scan.touches(), "fsdp::touch");
  context.rethrow_deferred();
}

namespace {

struct Registration {
  std::mutex mutex;
  int users = 0;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

Registration& registration() {
  static Registration instance;
  return instance;
}

}  // namespace

Observation::Observation() {
  Registration& shared = registration();
  const std::lock_guard lock(shared.mutex);
  if (shared.users++ > 0) return;
  shared.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&before_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  offer_gradient_slots();
}

Observation::~Observation() {
  Registration& shared = registration();
  const std::lock_guard lock(shared.mutex);
  if (--shared.users > 0) return;
  withdraw_gradient_slots();
  at::removeCallback(shared.handle);
}

}  // namespace fsdp
