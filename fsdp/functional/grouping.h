#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::functional {

// How a list of tensors becomes groups, and where each tensor lies in its group's buffer. Pure arithmetic; positions
// and sizes are in elements unless they are called bytes.

// What decides where a tensor goes.
struct ListedTensor {
  int64_t numel = 0;
  int64_t element_bytes = 0;
  int kind = 0;  // tensors of different kinds share no group
};

// Positions in the list, group by group, each in ascending order; groups in the order of their first tensors. Each kind
// has one open group at a time: a tensor joins it while it stays within group_bytes, else opens the next. Tensors
// without elements always join. REQUIRES: group_bytes > 0.
std::vector<std::vector<size_t>> group_by_size(std::span<const ListedTensor> tensors, int64_t group_bytes);

// Elements of one tensor that stay side by side in the buffer.
struct Piece {
  size_t member = 0;  // which tensor of the group
  int64_t tensor_begin = 0;
  int64_t buffer_begin = 0;
  int64_t numel = 0;

  bool operator==(const Piece&) const = default;
};

// A buffer of num_shards * shard_numel elements; shard r, from r * shard_numel on, belongs to rank r. What no piece
// covers is padding.
struct GroupLayout {
  int64_t shard_numel = 0;
  std::vector<Piece> pieces;  // in the order of buffer_begin, none empty
};

// Shards are multiples of align_numel. REQUIRES: num_shards and align_numel > 0.
//   flat       all tensors joined, then cut: one piece for each tensor
//   by tensor  shard r has piece r of every tensor, of ceil(numel / num_shards) elements, fewer or none at its end
GroupLayout lay_out_flat(std::span<const int64_t> numels, int64_t num_shards, int64_t align_numel);
GroupLayout lay_out_by_tensor(std::span<const int64_t> numels, int64_t num_shards, int64_t align_numel);

}  // namespace fsdp::functional
