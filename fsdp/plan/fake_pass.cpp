#include "fsdp/plan/fake_pass.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp::plan {
namespace {

using torch::jit::Stack;

FakePass*& pass_of_thread() {
  thread_local FakePass* pass = nullptr;
  return pass;
}

template <class Visit>
void visit_tensors(const c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) visit(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) visit_tensors(element, visit);
  }
}

// The same argument with `replace` applied to its tensors.
template <class Replace>
c10::IValue with_each_tensor(const c10::IValue& argument, const Replace& replace) {
  if (argument.isTensor()) return argument.toTensor().defined() ? c10::IValue(replace(argument.toTensor())) : argument;
  bool has_tensors = false;
  visit_tensors(argument, [&](const at::Tensor&) { has_tensors = true; });
  if (!has_tensors) return argument;
  c10::impl::GenericList list(argument.toList().elementType());
  for (const c10::IValue& element : argument.toListRef()) list.push_back(with_each_tensor(element, replace));
  return list;
}

at::Tensor on_meta_device(const at::Tensor& tensor) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// Whole numbers may be indices: those are 0.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return tensor;
  at::Tensor memory = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  if (!at::isFloatingType(tensor.scalar_type())) memory.zero_();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) memory.unsafeGetTensorImpl()->set_wrapped_number(true);
  return memory;
}

bool returns_tensors(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    const auto& type = *result.type();
    return type.isSubtypeOf(*c10::TensorType::get()) || type.kind() == c10::TypeKind::ListType;
  });
}

// Runs it on memory; results that were arguments are those again.
void run_for_shapes(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, Stack* stack,
                    size_t first) {
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins;  // without memory, and with it
  const auto fill = [&](const at::Tensor& meta) {
    for (const auto& [known, memory] : stand_ins) {
      if (known.is_same(meta)) return memory;
    }
    return stand_ins.emplace_back(meta, on_cpu(meta)).second;
  };
  const auto empty = [&](const at::Tensor& result) {
    for (const auto& [meta, memory] : stand_ins) {
      if (memory.is_same(result)) return meta;
    }
    return on_meta_device(result);
  };
  stack->resize(first);
  for (const c10::IValue& argument : arguments) {
    const bool is_device = argument.isDevice() && argument.toDevice().is_meta();
    stack->push_back(is_device ? c10::IValue(c10::Device(c10::kCPU)) : with_each_tensor(argument, fill));
  }
  op.callBoxed(stack);
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = with_each_tensor((*stack)[i], empty);
}

at::Tensor state_of_generator(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&FakePass::run_operator>());
}

}  // namespace

bool FakePass::is_running() { return pass_of_thread() != nullptr; }

FakePass::FakePass(const std::vector<State>& state, std::function<void(size_t)> on_read)
    : on_read_(std::move(on_read)), generator_(at::globalContext().defaultGenerator(at::kCPU)) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake);
  FSDP_CHECK(!is_running(), "[inspect] a pass without values inside another one, expected one at a time.");
  random_ = state_of_generator(generator_);
  for (const State& each : state) take_memory(each);
  for (size_t i = 0; i < state.size(); ++i)
    state_.emplace(state[i].tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), i);
  pass_of_thread() = this;
}

FakePass::~FakePass() {
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake);
  pass_of_thread() = nullptr;
  give_memory_back();
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(random_);
}

// The object stays, with what it is to autograd, and dispatches like a tensor of the meta device; set_data() would
// refuse that. Of a deferred tensor, too: TensorImpl's own functions leave what else that knows alone.
void FakePass::take_memory(const State& state) {
  const at::Tensor& tensor = state.tensor;
  if (tensor.is_meta() && tensor.scalar_type() == state.type) return;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  taken_.push_back({tensor, impl->TensorImpl::shallow_copy_and_detach(c10::VariableVersion(0), true)});
  const at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), at::device(at::kMeta).dtype(state.type));
  impl->TensorImpl::shallow_copy_from(meta.getIntrusivePtr());
}

void FakePass::give_memory_back() {
  for (const Taken& each : taken_) each.tensor.unsafeGetTensorImpl()->TensorImpl::shallow_copy_from(each.before);
}

int64_t FakePass::live_bytes() {
  int64_t bytes = 0;
  std::erase_if(made_, [](const auto& each) { return each.second.expired(); });
  for (const auto& [address, storage] : made_) bytes += static_cast<int64_t>(address->nbytes());
  return bytes;
}

int64_t FakePass::take_peak() { return std::exchange(peak_, live_bytes()); }

void FakePass::run_operator(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::Fake);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  pass_of_thread()->run(op, stack);
}

void FakePass::run(const c10::OperatorHandle& op, Stack* stack) {
  const auto& declared = op.schema().arguments();
  const size_t first = stack->size() - declared.size();
  note_reads(*stack, first);
  bool has_tensors = false;
  for (size_t i = first; i < stack->size(); ++i) {
    visit_tensors((*stack)[i], [&](const at::Tensor&) { has_tensors = true; });
    (*stack)[i] = with_each_tensor((*stack)[i], [this](const at::Tensor& tensor) { return stand_in(tensor); });
  }
  for (size_t i = 0; i < declared.size(); ++i) {
    c10::IValue& argument = (*stack)[first + i];
    if (declared[i].name() == "device" && (argument.isDevice() || !has_tensors)) argument = c10::Device(c10::kMeta);
  }
  const std::vector<c10::IValue> arguments(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    FSDP_CHECK(returns_tensors(op), "[inspect] ", op.operator_name(), " reads values, of which a pass without memory ",
               "has none. Leave it out of InspectOptions::forward.");
    run_for_shapes(op, arguments, stack, first);
  }
  note_results(*stack, first);
}

at::Tensor FakePass::stand_in(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  at::Tensor meta = on_meta_device(tensor);
  if (!tensor.has_storage()) return meta;
  const c10::Storage& real = tensor.unsafeGetTensorImpl()->unsafe_storage();
  Given& given = given_[real.unsafeGetStorageImpl()];
  if (!given.real) {
    const auto whole = at::empty({static_cast<int64_t>(real.nbytes())}, at::device(at::kMeta).dtype(at::kByte));
    given = {real, whole.unsafeGetTensorImpl()->unsafe_storage()};
    stand_ins_.insert(given.without_memory.unsafeGetStorageImpl());
  }
  meta.set_(given.without_memory, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  return meta;
}

void FakePass::note_reads(const Stack& stack, size_t first) {
  for (size_t i = first; i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      const auto found = state_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      if (found != state_.end()) on_read_(found->second);
    });
  }
}

void FakePass::note_results(const Stack& stack, size_t first) {
  bool has_new = false;
  for (size_t i = first; i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_meta() || !tensor.has_storage()) return;
      const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
      if (state_.count(storage.unsafeGetStorageImpl()) > 0 || stand_ins_.count(storage.unsafeGetStorageImpl()) > 0)
        return;
      has_new = made_.emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl()).second || has_new;
    });
  }
  if (has_new) peak_ = std::max(peak_, live_bytes());
}

}  // namespace fsdp::plan
