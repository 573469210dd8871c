#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::parallel {

// Which part of a parameter a rank has: number `part` of `parts` equal ones, side by side along `dim`.
struct CutPart {
  int64_t dim = 0;
  std::vector<int64_t> sizes;  // of the whole parameter
  int part = 0;
  int parts = 1;

  // Elements of the part that lie side by side in the whole parameter.
  int64_t run() const;
  // How often they do: 1 where the parts are one behind the other.
  int64_t num_runs() const;
};

// Of a parameter that cut_parameter() or parallelize() cut, or of its leaf; nothing for any other tensor. For those who
// read or write parameters by themselves: logical_sizes() and local_range() are those of the part. Local.
std::optional<CutPart> find_cut_part(const at::Tensor& parameter_or_leaf);

}  // namespace fsdp::parallel
