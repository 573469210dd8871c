#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::app {

// A tensor as it is stored somewhere.
struct TensorLine {
  std::string name;
  std::vector<int64_t> shape;
  std::string type;    // "BF16"
  uint64_t bytes = 0;  // of the tensor
};

// Whether tensors that differ only in the number of their layer share a line.
enum class LayerLines { kTogether, kEach };

// Columns name, shape, type, bytes; one line per tensor or per kind of tensor, layers in the order of their numbers,
// and a line of the sums. Names come from untrusted files and are made printable.
std::string tensor_table(const std::vector<TensorLine>& tensors, LayerLines layers);

}  // namespace fsdp::app
