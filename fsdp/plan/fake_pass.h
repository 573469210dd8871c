#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace fsdp::plan {

// While it lives, operators on this thread, forward and backward, compute shapes but no values: all that they make is
// on the meta device and takes no memory, and the pass counts what it would take. `state` (a model's parameters and
// buffers) is without memory meanwhile, deferred or not, in the types it is computed with, and afterwards as it was. An
// operator that has no form without values runs once on the CPU, on memory that nobody filled, for the shapes of its
// results. Not nested; one thread.
class FakePass {
 public:
  struct State {
    at::Tensor tensor;
    at::ScalarType type;
  };
  // `on_read`: called before each operator that reads a tensor of `state`, with its index.
  FakePass(const std::vector<State>& state, std::function<void(size_t)> on_read);
  ~FakePass();
  FakePass(const FakePass&) = delete;
  FakePass& operator=(const FakePass&) = delete;

  // Of all that the pass has made and somebody still holds, each storage once.
  int64_t live_bytes();
  // The largest live_bytes() after an operator since the call before.
  int64_t take_peak();

  // On this thread.
  static bool is_running();
  // For the dispatcher.
  static void run_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  void take_memory(const State& state);
  void give_memory_back();
  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  at::Tensor stand_in(const at::Tensor& tensor);
  void note_reads(const torch::jit::Stack& stack, size_t first);
  void note_results(const torch::jit::Stack& stack, size_t first);

  struct Taken {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> before;  // what it was
  };
  std::vector<Taken> taken_;
  std::unordered_map<const c10::StorageImpl*, size_t> state_;
  // Storages of the program's that operators read, and in place of which: views of one are views of the other.
  struct Given {
    c10::Storage real, without_memory;
  };
  std::unordered_map<const c10::StorageImpl*, Given> given_;
  std::unordered_set<const c10::StorageImpl*> stand_ins_;
  std::function<void(size_t)> on_read_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  int64_t peak_ = 0;
  at::Generator generator_;  // of the CPU, with its state before
  at::Tensor random_;
  c10::impl::ExcludeDispatchKeyGuard stay_deferred_{c10::DispatchKey::DeferredInit};
  c10::impl::IncludeDispatchKeyGuard see_operators_{c10::DispatchKey::Fake};
};

}  // namespace fsdp::plan
