#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/dcp/dcp_metadata.h"

namespace fsdp::io {

// Whether the chunks of tensors are boxes that lie inside, do not overlap and cover everything. One object for all
// tensors of a checkpoint: it limits the work that a hostile one may cause.
class ChunkChecker {
 public:
  explicit ChunkChecker(uint64_t max_comparisons = uint64_t{1} << 28) : num_left_(max_comparisons) {}

  // What is wrong with the chunks; empty: nothing. REQUIRES: checked_numel(tensor.shape), no chunk without elements.
  std::string problem(const DcpTensor& tensor);

 private:
  std::string overlap(const DcpTensor& tensor);

  uint64_t num_left_;  // comparisons of two chunks
};

// Elements [first, first + count) of a flattened tensor that are a box as well: one index in each dim before `dim`, a
// range in `dim`, all of the dims behind it.
struct TensorRun {
  int64_t first = 0;
  int64_t count = 0;
  size_t dim = 0;
};

// Cuts a tensor into runs of at most `max_elements`, in order.
std::vector<TensorRun> cut_into_runs(const std::vector<int64_t>& shape, int64_t max_elements);

// The chunks that runs may touch, while these come in order: who looked at every chunk for every run would look as
// often as there are pairs of them.
class ChunkWindow {
 public:
  // REQUIRES: chunks that passed the checker.
  explicit ChunkWindow(const DcpTensor& tensor);

  // Indices of the chunks whose elements, from first to last, may reach into `run`. REQUIRES: no run before the
  // last.
  const std::vector<size_t>& move_to(const TensorRun& run);

 private:
  std::vector<std::pair<int64_t, size_t>> by_first_;  // first element, and whose it is
  std::vector<int64_t> last_;                         // element of each chunk
  size_t num_begun_ = 0;
  std::vector<size_t> open_;
};

// The part of a chunk that lies in a run: contiguous in the chunk, maybe scattered in the run.
class ChunkPart {
 public:
  // REQUIRES: a run of cut_into_runs(shape, ...), a chunk that passed the checker.
  ChunkPart(const std::vector<int64_t>& shape, const TensorRun& run, const DcpChunk& chunk);

  // Elements; 0: the chunk does not touch the run.
  int64_t count() const { return count_; }
  // Where the part starts in the flattened chunk.
  int64_t first_in_chunk() const { return first_in_chunk_; }
  // Where it starts in the run, if it is contiguous there too.
  std::optional<int64_t> first_in_run() const;

  // Copies it from `part` to where its elements belong in `run`.
  void scatter(const void* part, size_t item_bytes, void* run) const;

 private:
  // One level of the loop nest over the part, outermost first; strides in elements of the run.
  struct Loop {
    int64_t count;
    int64_t stride;
  };
  int64_t count_ = 0;
  int64_t first_in_chunk_ = 0;
  int64_t first_in_run_ = 0;
  int64_t contiguous_ = 1;  // elements copied at once
  std::vector<Loop> loops_;
};

}  // namespace fsdp::io
