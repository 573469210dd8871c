#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "fsdp/layout/planner.h"

namespace fsdp::layout {

// Who gets which tensors, where none is cut.
enum class Owners {
  kInOrder,   // as the smallest shard for the module's order has it: equal units put equal loads on equal ranks
  kBalanced,  // tensors are dealt out: first so that shards are small, then so that the work of all units together is
              // even. Only for Granularity::kTensor
};

// A tensor to be dealt out.
struct OwnedTensor {
  int64_t numel = 0;
  double work = 0;  // of its optimizer, in any unit
};

// Floating-point operations of one iteration that makes the rows, or the columns, of such a matrix orthogonal; 0 for
// what has not two dims. Muon's work.
double orthogonalization_work(std::span<const int64_t> shape);

// The work that each of some owners has from the units dealt so far. Pure arithmetic: the same calls give the same
// owners on every rank, and in the planner.
class OwnerLoads {
 public:
  explicit OwnerLoads(int64_t num_owners) : work_(static_cast<size_t>(num_owners)) {}

  // The owner of each tensor of the next unit. Tensors are packed, largest first, into the emptiest of as many bins as
  // there are owners; then bins, most work first, go to the owner that has had the fewest of the same work, and of
  // those to the one with the least work: units that are alike come round evenly. After: Graham 1969 (longest
  // processing time first).
  std::vector<int64_t> deal(std::span<const OwnedTensor> tensors);
  const std::vector<double>& work() const { return work_; }

 private:
  int64_t next_owner(double work, std::vector<char>& is_taken);

  std::vector<double> work_;
  std::map<double, std::vector<int64_t>> counts_;  // by a bin's work: how many of them each owner has
};

// Where tensors lie that were dealt out.
struct OwnedLayout {
  std::vector<size_t> order;  // of the flat buffer: places in the list that was given
  FlatLayout layout;          // of the tensors in that order
};

// Each tensor whole in the shard of its owner, in the given order within that; the smallest shards that hold them.
// Throws std::invalid_argument for owners that do not exist.
OwnedLayout plan_owned(std::span<const int64_t> numels, std::span<const int64_t> owners, int64_t num_owners,
                       int64_t align_elements);

}  // namespace fsdp::layout
