#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <type_traits>
#include <utility>

// What LibTorch offers in some of its versions only.
namespace fsdp::libtorch {

// Undoes StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_(): memory may be asked for again. 2.15 has a
// function for it, the versions before it have none.
void allow_access(c10::StorageImpl& storage);

// Who owns a node of a graph. 2.15 has intrusive pointers here, the versions before it std::shared_ptr.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

template <class Pointer>
struct WeakOf;
template <class Object>
struct WeakOf<std::shared_ptr<Object>> {
  using Type = std::weak_ptr<Object>;
};
template <class Object>
struct WeakOf<c10::intrusive_ptr<Object>> {
  using Type = c10::weak_intrusive_ptr<Object>;
};
// Made of a NodePtr, which may be empty.
using WeakNodePtr = WeakOf<NodePtr>::Type;

}  // namespace fsdp::libtorch
