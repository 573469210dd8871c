#include "train/model/stored_tensor.h"

#include <ATen/ATen.h>

#include "io/base/error.h"

namespace fsdp::train {
namespace {

const io::TensorEntry& find(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    throw io::Error(io::ErrorKind::kModel, "[read] " + file.path().string() + ": no tensor " + io::in_quotes(name) +
                                               ". Is this the right file for this model?");
  }
  return *entry;
}

}  // namespace

at::ScalarType scalar_type(const io::TensorEntry& entry) {
  switch (entry.dtype) {
    case io::DType::F64:
      return at::kDouble;
    case io::DType::F32:
      return at::kFloat;
    case io::DType::F16:
      return at::kHalf;
    case io::DType::BF16:
      return at::kBFloat16;
    case io::DType::I64:
      return at::kLong;
    case io::DType::I32:
      return at::kInt;
    default:
      throw io::Error(io::ErrorKind::kModel, "[read] " + io::in_quotes(entry.name) + ": got dtype " +
                                                 std::string(io::name(entry.dtype)) +
                                                 ", expected F64, F32, F16, BF16, I64 or I32. Convert the file first.");
  }
}

at::ScalarType weight_type(const io::TensorEntry& entry) {
  const at::ScalarType type = scalar_type(entry);
  if (!at::isFloatingType(type)) {
    throw io::Error(io::ErrorKind::kModel, "[load] " + io::in_quotes(entry.name) + ": got dtype " +
                                               std::string(io::name(entry.dtype)) +
                                               ", expected F64, F32, F16 or BF16. Convert the weights first.");
  }
  return type;
}

at::Tensor read_tensor(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorEntry& entry = find(file, name);
  at::Tensor tensor = at::empty(entry.shape, scalar_type(entry));
  file.read(entry, 0, entry.numel(), tensor.mutable_data_ptr());
  return tensor;
}

at::Tensor read_slice(const io::SafetensorsFile& file, const std::string& name, int64_t begin, int64_t end) {
  const io::TensorEntry& entry = find(file, name);
  at::Tensor slice = at::empty({end - begin}, weight_type(entry));
  file.read(entry, begin, end - begin, slice.mutable_data_ptr());
  return slice.to(at::kFloat);
}

}  // namespace fsdp::train
