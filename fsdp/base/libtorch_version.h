#pragma once

#include <c10/core/StorageImpl.h>

// What LibTorch offers in some of its versions only.
namespace fsdp::libtorch {

// Undoes StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_(): memory may be asked for again. 2.15 has a
// function for it, the versions before it have none.
void allow_access(c10::StorageImpl& storage);

}  // namespace fsdp::libtorch
