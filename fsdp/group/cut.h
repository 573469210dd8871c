#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/comm/comm.h"

namespace fsdp {

// How a parameter was cut before it was sharded (tensor parallelism): in equal parts of one dimension, one for each of
// `ranks`, in their order. What fully_shard() gets is this rank's part.
struct Cut {
  int64_t dim = 0;
  std::vector<int64_t> sizes;  // of the whole tensor
  std::shared_ptr<comm::Comm> ranks;

  // Elements of a part that lie side by side in the whole tensor.
  int64_t run() const;
  // Whether all of a part do.
  bool is_one_run() const;
};

namespace registry {

// Of parameters and of the leaves made of them. Process-wide, thread-safe; keeps neither tensors nor ranks alive.
void add_cut(const at::Tensor& tensor, const Cut& cut);
std::optional<Cut> find_cut(const at::Tensor& tensor);

}  // namespace registry
}  // namespace fsdp
