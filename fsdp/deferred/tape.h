// What constructors would have computed, written down.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace fsdp::construction {

// What a tensor without memory will be. Undefined until the call that makes it was carried out; kept by the tensor
// itself and by the calls that read it.
struct Value {
  at::Tensor tensor;
};
using ValuePtr = std::shared_ptr<Value>;

using Storages = std::unordered_set<const c10::StorageImpl*>;

class Tape;

// A tensor without memory: a meta tensor that dispatches to the capture and knows its value. Copies that share its
// storage (set_data(), data()) share the value. Once it has come to life it is an ordinary tensor.
class DeferredTensor : public c10::TensorImpl {
 public:
  // Takes shape, dtype and storage of `meta`.
  DeferredTensor(const c10::TensorImpl* meta, const c10::VariableVersion& version, bool allow_metadata_change,
                 std::shared_ptr<Tape> tape, ValuePtr value);
  ~DeferredTensor() override;
  DeferredTensor(const DeferredTensor&) = delete;
  DeferredTensor& operator=(const DeferredTensor&) = delete;

  // Null where the tensor is an ordinary one or has come to life.
  static DeferredTensor* of(const at::Tensor& tensor);

  const std::shared_ptr<Tape>& tape() const { return tape_; }
  const ValuePtr& value() const { return value_; }
  const c10::StorageImpl* storage_address() const { return unsafe_storage().unsafeGetStorageImpl(); }
  // Computed outside of a scope from what wants a gradient, without a graph.
  bool lost_history() const { return lost_history_; }
  void lose_history() { lost_history_ = true; }
  // The tensor object stays, with what it is to autograd; its memory and layout are the value's.
  void come_to_life();

  void release_resources() override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;

 private:
  void enter(std::shared_ptr<Tape> tape, ValuePtr value);
  void leave();

  std::shared_ptr<Tape> tape_;
  ValuePtr value_;
  bool lost_history_ = false;
};

// An argument of a call, with values in place of tensors without memory.
class Operand {
 public:
  explicit Operand(const c10::IValue& argument);

  // The argument with memory. Throws Error(kUsage) if the program changed a tensor of its own in between.
  c10::IValue restore() const;
  void replace(c10::IValue argument) { elements_.front().plain = std::move(argument); }
  void for_each_value(const std::function<void(Value&)>& visit) const;

 private:
  static constexpr int64_t kUnknownVersion = -1;
  struct Element {
    explicit Element(const c10::IValue& argument);
    c10::IValue restore() const;

    c10::IValue plain;
    ValuePtr value;  // null: it is `plain`
    int64_t version = kUnknownVersion;
  };

  c10::TypePtr element_type_;  // of a list of tensors; otherwise null and there is one element
  std::vector<Element> elements_;
};

// A call that was put off.
struct Call {
  struct Output {
    std::weak_ptr<Value> value;  // of a new tensor; expired when nobody will ask for it
    c10::Storage storage;        // of the tensor without memory
  };

  // Whether it makes a tensor that somebody holds, or writes one, in any of these storages.
  bool concerns(const Storages& storages) const;
  // Memory without values, which is worth nothing before another call needs it.
  bool only_allocates() const;
  void carry_out() const;

  c10::OperatorHandle op;
  std::vector<Operand> operands;
  std::vector<Output> outputs;  // one per tensor that the call returns
  std::vector<c10::Storage> written;
};

// Calls `visit` for each defined tensor of the argument, one or a list.
void for_each_tensor(const c10::IValue& argument, const std::function<void(const at::Tensor&)>& visit);

// The calls of one scope, in order; they are carried out from the front, but for allocations, which wait for a call
// that needs them. Kept alive by the scope and its tensors. Not thread-safe.
class Tape {
 public:
  Tape();

  // Later scopes have larger numbers.
  int64_t number() const { return number_; }
  void add(Call call) { calls_.push_back(std::move(call)); }
  // Carries out what must be for tensors on these storages, and brings all that exist on them to life.
  void materialize(const Storages& wanted);
  void materialize_all();

 private:
  friend class DeferredTensor;
  void carry_out(size_t count, const Storages& wanted);
  size_t postpone_allocations(size_t count, const Storages& wanted);
  std::vector<bool> find_needed(size_t count, const Storages& wanted) const;
  void hand_over(const Storages& wanted);
  void keep_copies_for_readers(const Storages& handed_over);

  int64_t number_;
  std::deque<Call> calls_;
  std::unordered_set<DeferredTensor*> tensors_;
};

// The tape of the scope on this thread; null outside of one.
std::shared_ptr<Tape>& scope_tape();

}  // namespace fsdp::construction
