#include "fsdp/checkpoint/slice_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "fsdp/base/check.h"

namespace fsdp::checkpoint {
namespace {

using nlohmann::json;

// Replicas share a range only where it is worth a separate write.
constexpr int64_t kSmallestShare = int64_t{1} << 14;  // elements
constexpr int64_t kShareMultiple = 64;                // elements: keeps shares aligned

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::string encode(const std::vector<SliceRow>& rows) {
  json list = json::array();
  for (const SliceRow& row : rows) {
    list.push_back({row.name, static_cast<int>(row.dtype), row.shape, row.begin, row.end});
  }
  return list.dump();
}

std::vector<SliceRow> decode(const std::string& text) {
  std::vector<SliceRow> rows;
  for (const json& item : json::parse(text)) {
    rows.push_back({item[0], static_cast<io::DType>(item[1].get<int>()), item[2], item[3], item[4]});
  }
  return rows;
}

WritePlan::WritePlan(const std::vector<std::vector<SliceRow>>& tables)
    : num_ranks_(static_cast<int>(tables.size())), load_(tables.size()) {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    for (const SliceRow& row : tables[static_cast<size_t>(rank)]) {
      Tensor& tensor = tensors_.try_emplace(row.name, Tensor{row.dtype, row.shape, {}}).first->second;
      FSDP_ASSERT(tensor.dtype == row.dtype && tensor.shape == row.shape, "ranks differ on '", row.name, "'");
      if (row.begin < row.end) tensor.pieces.push_back({row.begin, row.end, rank});
    }
  }
  for (auto& [name, tensor] : tensors_) tensor.pieces = deal_out(name, tensor);
}

// Between two neighbouring ends of anybody's range, the same ranks have all elements.
std::vector<WritePlan::Piece> WritePlan::deal_out(const std::string& name, const Tensor& tensor) {
  std::set<int64_t> ends{0, numel_of(tensor.shape)};
  for (const Piece& piece : tensor.pieces) {
    ends.insert(piece.begin);
    ends.insert(piece.end);
  }
  std::vector<Piece> dealt;
  const auto deal = [&](int64_t begin, int64_t end, int rank) {
    if (begin == end) return;
    load_[static_cast<size_t>(rank)] += (end - begin) * static_cast<int64_t>(io::item_size(tensor.dtype));
    if (!dealt.empty() && dealt.back().rank == rank) {
      dealt.back().end = end;
    } else {
      dealt.push_back({begin, end, rank});
    }
  };
  for (auto begin = ends.begin(), end = std::next(begin); end != ends.end(); ++begin, ++end) {
    std::vector<int> holders;
    for (const Piece& piece : tensor.pieces) {
      if (piece.begin <= *begin && *end <= piece.end) holders.push_back(piece.rank);
    }
    FSDP_ASSERT(!holders.empty(), "no rank has elements ", *begin, " to ", *end, " of '", name, "'");
    std::stable_sort(holders.begin(), holders.end(),
                     [&](int a, int b) { return load_[static_cast<size_t>(a)] < load_[static_cast<size_t>(b)]; });
    const auto num_holders = static_cast<int64_t>(holders.size());
    const int64_t share = std::max(kSmallestShare, (*end - *begin + num_holders - 1) / num_holders);
    const int64_t step = (share + kShareMultiple - 1) / kShareMultiple * kShareMultiple;
    size_t holder = 0;
    for (int64_t place = *begin; place < *end; place += step) {
      deal(place, std::min(place + step, *end), holders[holder++ % holders.size()]);
    }
  }
  return dealt;
}

std::vector<io::FlatRange> WritePlan::ranges_of(int rank) const {
  std::vector<io::FlatRange> ranges;
  for (const auto& [name, tensor] : tensors_) {
    for (const Piece& piece : tensor.pieces) {
      if (piece.rank == rank) ranges.push_back({name, tensor.dtype, piece.begin, piece.end});
    }
  }
  return ranges;
}

std::vector<io::CheckpointTensor> WritePlan::tensors() const {
  std::map<std::string, io::CheckpointTensor> result;
  for (const auto& [name, tensor] : tensors_) result[name] = {name, tensor.dtype, tensor.shape, {}};
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const io::FileImage image(ranges_of(rank));
    for (size_t i = 0; i < image.ranges().size(); ++i) {
      const io::FlatRange& range = image.ranges()[i];
      result[range.name].parts.push_back({static_cast<uint32_t>(rank), image.offset(i), range.begin, range.end});
    }
  }
  std::vector<io::CheckpointTensor> list;
  for (auto& [name, tensor] : result) {
    std::sort(tensor.parts.begin(), tensor.parts.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    list.push_back(std::move(tensor));
  }
  return list;
}

}  // namespace fsdp::checkpoint
