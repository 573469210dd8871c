#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/state.h"
#include "fsdp/group/cut.h"
#include "fsdp/layout/planner.h"

namespace fsdp::checkpoint {

// Where this rank's part of a sharded parameter (or of anything cut like it) lies in the whole tensor. A parameter that
// was cut in columns before it was sharded has its parts of many rows there; checkpoints know ranges only. So the ranks
// of the cut, who have parts of the same rows, exchange them, and each writes and reads an equal share of those rows.
class WholeRange {
 public:
  // `tensor` belongs to a group.
  explicit WholeRange(const ModuleTensor& tensor);

  // What this rank saves. `local`: 1-D, what the rank has. COLLECTIVE over the ranks of a cut in columns: calls with
  // the same names in the same order.
  TensorSlice to_save(const std::string& name, const at::Tensor& local) const;
  // What it asks for: `local` itself, or memory of its own, which take() brings to `local` when it was read. take() is
  // COLLECTIVE likewise.
  TensorSlice to_load(const std::string& name, const at::Tensor& local) const;
  void take(const TensorSlice& read, const at::Tensor& local) const;
  // Of a state that has one number for `block` elements, which no border between ranks cuts: what this rank saves or
  // asks for. Not for a parameter that was cut before it was sharded.
  TensorSlice blocks(const std::string& name, const at::Tensor& local, int64_t block) const;
  // Whether take() is needed.
  bool is_exchanged() const { return cut_ && !cut_->is_one_run(); }

 private:
  TensorSlice place(const std::string& name) const;

  std::vector<int64_t> sizes_;
  layout::Range local_;
  std::optional<Cut> cut_;
};

}  // namespace fsdp::checkpoint
