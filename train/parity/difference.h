#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace fsdp::train {

// How far one tensor is from another; can be made from parts of it. What is not finite counts as infinitely far.
struct Difference {
  double max_abs = 0;
  double max_expected = 0;  // largest expected magnitude
  double sum_squares = 0;   // of the differences
  double sum_squares_expected = 0;
  int64_t compared = 0;  // elements

  // Adds elements, compared in fp64. Same shape or numel.
  void add(const at::Tensor& actual, const at::Tensor& expected);
  double relative() const;  // max_abs / max_expected
};

// COLLECTIVE. Joins what the ranks compared of each quantity.
std::vector<Difference> join_over_ranks(const World& world, const std::vector<Difference>& mine);

}  // namespace fsdp::train
