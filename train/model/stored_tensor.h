#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "io/safetensors/safetensors.h"

namespace fsdp::train {

// LibTorch's type for a stored one. Throws io::Error(kModel) for one it does not have.
at::ScalarType scalar_type(const io::TensorEntry& entry);

// The same for weights: F64, F32, F16 or BF16.
at::ScalarType weight_type(const io::TensorEntry& entry);

// A whole tensor as it is stored. Throws io::Error(kModel) if the file has no tensor of that name.
at::Tensor read_tensor(const io::SafetensorsFile& file, const std::string& name);

// Elements [begin, end) of a flattened tensor, as fp32 [end - begin].
at::Tensor read_slice(const io::SafetensorsFile& file, const std::string& name, int64_t begin, int64_t end);

}  // namespace fsdp::train
