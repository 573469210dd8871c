#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/base/dtype.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::checkpoint {

// Elements [begin, end) of a flattened logical tensor that a rank could write.
struct SliceRow {
  std::string name;
  io::DType dtype = io::DType::F32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

// What travels between ranks.
std::string encode(const std::vector<SliceRow>& rows);
std::vector<SliceRow> decode(const std::string& text);

// Who writes what: every element of every tensor exactly once. Where several ranks have the same elements (replicas),
// they share the work. A pure function of the ranks' tables.
class WritePlan {
 public:
  WritePlan() = default;
  // tables[r]: of rank r. Throws Error(kInternal) for tensors on whose dtype or shape ranks differ, or that no rank has
  // all elements of.
  explicit WritePlan(const std::vector<std::vector<SliceRow>>& tables);

  // By name, then place.
  std::vector<io::FlatRange> ranges_of(int rank) const;
  // All tensors with their parts in files 0 .. ranks-1.
  std::vector<io::CheckpointTensor> tensors() const;
  int num_ranks() const { return num_ranks_; }

 private:
  struct Piece {
    int64_t begin;
    int64_t end;
    int rank;
  };
  struct Tensor {
    io::DType dtype;
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;  // sorted, without gaps
  };
  std::vector<Piece> deal_out(const std::string& name, const Tensor& tensor);

  int num_ranks_ = 0;
  std::vector<int64_t> load_;  // bytes that each rank writes
  std::map<std::string, Tensor> tensors_;
};

}  // namespace fsdp::checkpoint
