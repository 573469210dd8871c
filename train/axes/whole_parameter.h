// Where a rank's slice of a parameter lies in the whole one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::train {

// Shape of the whole parameter that a leaf is of, cut over "tp" or not. Local.
std::vector<int64_t> whole_sizes(const at::Tensor& leaf);

// Elements of a leaf that lie side by side in the whole parameter, flattened.
struct WholeRun {
  int64_t first = 0;  // there
  int64_t begin = 0;  // in the leaf
  int64_t count = 0;
};
// All of a leaf, in order; many where it was cut by columns. Local.
std::vector<WholeRun> whole_runs(const at::Tensor& leaf);

// A parameter of the whole model, of which this rank may have nothing.
struct WholeTensor {
  std::string name;
  std::vector<int64_t> sizes;
  bool trains = true;

  int64_t numel() const;
};

// The same slices have the same text, others another. Local.
std::string slice_text(const at::Tensor& leaf);

}  // namespace fsdp::train
