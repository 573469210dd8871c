#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp {

namespace comm {
class Comm;
}  // namespace comm

// Of a program that may let go of them.
using WeakTensors = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;

// The .grad of each becomes the mean over the ranks of `comm`, see IgnoredGradients::kMean. COLLECTIVE; every rank
// lists the same. Throws Error(kUsage) for a sparse gradient.
void average_gradients(comm::Comm& comm, const WeakTensors& parameters);

}  // namespace fsdp
