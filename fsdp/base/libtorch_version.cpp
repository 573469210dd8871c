#include "fsdp/base/libtorch_version.h"

#include <torch/version.h>

namespace fsdp::libtorch {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15

namespace {

// An explicit instantiation may name what is private ([temp.explicit]): the flag has no other door here.
template <bool c10::StorageImpl::*Flag>
struct Door {
  friend bool& refuses_access(c10::StorageImpl& storage) { return storage.*Flag; }
};
bool& refuses_access(c10::StorageImpl& storage);
template struct Door<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void allow_access(c10::StorageImpl& storage) { refuses_access(storage) = false; }

#else

void allow_access(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }

#endif

}  // namespace fsdp::libtorch
