// Small helpers for writing and calling registered operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace fsdp::kernels {

// Calls `body(T{})` with T = float or at::BFloat16; any other dtype is an error that names `op`.
template <class Body>
void dispatch_dtype(const char* op, const at::Tensor& tensor, Body&& body) {
  if (tensor.scalar_type() == at::kFloat) return body(float{});
  if (tensor.scalar_type() == at::kBFloat16) return body(at::BFloat16{});
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op, "] got ", tensor.scalar_type(), ", expected float32 or bfloat16");
}

// The operator `name` with C++ signature `Signature`, to be called through the dispatcher: only there do observers
// (touch-driven sharding, profilers) see its inputs. Keep the result in a function-local static.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Whether operator `op` has a kernel for the device of `x`.
inline bool has_kernel(const c10::OperatorHandle& op, const at::Tensor& x) {
  const auto backend = x.key_set().highestBackendKey();
  return op.hasKernelForDispatchKey(c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, backend));
}

}  // namespace fsdp::kernels
