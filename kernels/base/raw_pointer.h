// Tensors' memory as the raw kernels see it.
#pragma once

#include <c10/util/BFloat16.h>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels {

// The type that the raw kernels call T.
template <class T>
struct RawType {
  using Type = T;
};
template <>
struct RawType<c10::BFloat16> {
  using Type = raw::Bf16;
};
template <class T>
using Raw = RawType<T>::Type;

static_assert(sizeof(raw::Bf16) == sizeof(c10::BFloat16) && alignof(raw::Bf16) == alignof(c10::BFloat16));

template <class T>
Raw<T>* raw_data(T* data) {
  return reinterpret_cast<Raw<T>*>(data);
}
template <class T>
const Raw<T>* raw_data(const T* data) {
  return reinterpret_cast<const Raw<T>*>(data);
}

}  // namespace fsdp::kernels
