#include "fsdp/checkpoint/archive/stand_ins.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

void* reserve(size_t num_bytes) {
  if (num_bytes == 0) return nullptr;
  void* memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    FSDP_THROW(kMemory, "[checkpoint] ", num_bytes, " bytes of address space: got \"", std::strerror(errno),
               "\", expected them without using memory. Raise the limit (ulimit -v, vm.overcommit_memory).");
  }
  return memory;
}

}  // namespace

StandIn::StandIn(const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype)
    : tensor_(tensor.unsafeGetTensorImpl()), original_(tensor.variable_data()), version_(tensor._version()) {
  const size_t num_bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  void* memory = reserve(num_bytes);
  memory_ = {memory, num_bytes};
  const auto release = [memory, num_bytes](void*) {
    if (memory != nullptr) ::munmap(memory, num_bytes);
  };
  const at::Tensor stand_in = at::from_blob(memory, sizes, release, at::TensorOptions().dtype(dtype));
  storage_ = stand_in.storage();
  // set_data() would throw away the gradient accumulator where the dtype changes.
  tensor_->shallow_copy_from(stand_in.getIntrusivePtr());
}

StandIn::~StandIn() {
  tensor_->shallow_copy_from(original_.getIntrusivePtr());
  // Operators that gave the tensor other memory have counted.
  c10::VariableVersion version = tensor_->version_counter();
  version.set_version(version_);
}

bool StandIn::holds_tensor() const {
  return tensor_->unsafe_storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl();
}

}  // namespace fsdp
