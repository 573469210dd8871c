#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::layout {

// Where the tensors of one parameter group lie in one flat buffer that is cut into equal shards. Pure arithmetic: the
// planner and the runtime share it. All sizes and positions are in elements.

// Tensors start and shards end at multiples of so many bytes, in every dtype that a group has.
inline constexpr int64_t kAlignBytes = 16;

// A tensor to be placed. A shard boundary may cut it only at a multiple of `granule` from its start.
struct TensorSpec {
  int64_t numel;
  int64_t granule = 1;
};

// What an optimizer or quantiser needs to find whole on one rank.
enum class Granularity { kElement, kRow, kBlock, kTensor };

// Elements of one granule of a tensor of that shape: 1; a row (all but the first dim); `block` consecutive elements;
// all. At least 1. Throws std::invalid_argument for negative sizes and, with kBlock, a block below 1.
int64_t granule_of(Granularity granularity, std::span<const int64_t> shape, int64_t block);

// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end == begin; }
  bool operator==(const Range&) const = default;
};

// The plan. Tensor i lies at [offsets[i], offsets[i] + numels[i]) of a buffer of num_shards * shard_numel elements;
// shard k is [k * shard_numel, (k + 1) * shard_numel).
struct FlatLayout {
  std::vector<int64_t> offsets;
  std::vector<int64_t> numels;
  int64_t shard_numel = 0;
  int64_t num_shards = 1;

  int64_t total_numel() const { return shard_numel * num_shards; }
  // Elements of the buffer that belong to no tensor.
  int64_t padding() const;
  // padding() in percent of the elements of the tensors; 0 if there are none.
  double padding_percent() const;
  // Shard `shard` in buffer coordinates, padding included. Throws std::invalid_argument for a shard that does not
  // exist.
  Range owned(int64_t shard) const;
  // The part of tensor `tensor` that lies in `shard`, in elements from the start of the tensor; {0, 0} if there is
  // none.
  Range slice_of(int64_t shard, size_t tensor) const;

  // The same tensors over num_shards / factor shards of `factor` times the size. Throws std::invalid_argument if factor
  // does not divide num_shards.
  FlatLayout coarsened(int64_t factor) const;

  bool operator==(const FlatLayout&) const = default;
};

// Places `tensors` in the given order with the smallest possible shard: tensors contiguous and disjoint; starts and
// shard size multiples of `align_elements`; no granule cut. Exact for the order. Time: about (number of sizes tried) *
// tensors; milliseconds for one decoder layer over 1024 shards. Throws std::invalid_argument naming the argument, also
// for sizes whose sum leaves 63 bits. After: the planning problem of veScale-FSDP; the exact scan is ours (feasibility
// is not monotone in the shard size, so a binary search can miss the optimum).
FlatLayout plan(std::span<const TensorSpec> tensors, int64_t num_shards, int64_t align_elements);

// A number that differs when layouts differ, equal on all machines: ranks compare it before they communicate (FNV-1a).
uint64_t digest(const FlatLayout& layout);

}  // namespace fsdp::layout
