#include "fsdp/functional/grouping.h"

#include <algorithm>
#include <map>

namespace fsdp::functional {
namespace {

int64_t ceil_divide(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }
int64_t round_up(int64_t count, int64_t multiple) { return ceil_divide(count, multiple) * multiple; }

}  // namespace

std::vector<std::vector<size_t>> group_by_size(std::span<const ListedTensor> tensors, int64_t group_bytes) {
  struct Open {
    size_t group;
    int64_t bytes;
  };
  std::map<int, Open> open_groups;  // by kind
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].numel * tensors[i].element_bytes;
    const auto open = open_groups.find(tensors[i].kind);
    if (open != open_groups.end() && (bytes == 0 || open->second.bytes + bytes <= group_bytes)) {
      groups[open->second.group].push_back(i);
      open->second.bytes += bytes;
    } else {
      open_groups[tensors[i].kind] = {groups.size(), bytes};
      groups.push_back({i});
    }
  }
  return groups;
}

GroupLayout lay_out_flat(std::span<const int64_t> numels, int64_t num_shards, int64_t align_numel) {
  GroupLayout layout;
  int64_t end = 0;
  for (size_t member = 0; member < numels.size(); ++member) {
    if (numels[member] > 0) layout.pieces.push_back({member, 0, end, numels[member]});
    end += numels[member];
  }
  layout.shard_numel = round_up(ceil_divide(end, num_shards), align_numel);
  return layout;
}

GroupLayout lay_out_by_tensor(std::span<const int64_t> numels, int64_t num_shards, int64_t align_numel) {
  GroupLayout layout;
  int64_t row = 0;
  for (const int64_t numel : numels) row += ceil_divide(numel, num_shards);
  layout.shard_numel = round_up(row, align_numel);
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    int64_t buffer_begin = shard * layout.shard_numel;
    for (size_t member = 0; member < numels.size(); ++member) {
      const int64_t width = ceil_divide(numels[member], num_shards);
      const int64_t tensor_begin = std::min(shard * width, numels[member]);
      const int64_t numel = std::min(width, numels[member] - tensor_begin);
      if (numel > 0) layout.pieces.push_back({member, tensor_begin, buffer_begin, numel});
      buffer_begin += width;
    }
  }
  return layout;
}

}  // namespace fsdp::functional
