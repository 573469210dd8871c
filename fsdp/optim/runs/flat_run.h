#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp {

// What an update is computed from.
enum class RunOf {
  kNeighbours,  // each element alone: leaves that lie side by side are updated together
  kBlocks,      // the elements of a block (the largest of the states'), which no border between ranks cuts
  kTensor,      // all of a parameter, which lies whole on one rank: that updates it alone
};

// What one optimizer kernel call works on: 1-D fp32 tensors of equal length, states aside that are cut otherwise.
struct FlatRun {
  at::Tensor weight;
  at::Tensor gradient;
  at::Tensor copy;                 // low-precision model weight to write along, or undefined
  std::vector<at::Tensor> states;  // the optimizer's, zero at first
  int64_t step = 0;                // 1 for the first update of these elements
  size_t options = 0;              // index of the optimizer's group
  RunOf of = RunOf::kNeighbours;
  std::vector<int64_t> sizes;  // of the parameter, where a run is one: RunOf::kTensor
  // Where a run is of one parameter, RunOf::kBlocks: its number among the optimizer's, the same on all ranks, and the
  // place in it at which this rank's part begins.
  size_t parameter = 0;
  int64_t begin = 0;
  std::vector<int64_t> blocks;  // elements for each number of each state; empty: one
};

// Calls update(piece) for parts of at most `longest` elements that follow each other. RunOf::kBlocks: a multiple of all
// blocks.
template <class Update>
void for_each_piece(const FlatRun& run, int64_t longest, const Update& update) {
  for (int64_t begin = 0; begin < run.weight.numel(); begin += longest) {
    const int64_t numel = std::min(longest, run.weight.numel() - begin);
    FlatRun piece = run;
    piece.weight = run.weight.narrow(0, begin, numel);
    piece.gradient = run.gradient.narrow(0, begin, numel);
    if (run.copy.defined()) piece.copy = run.copy.narrow(0, begin, numel);
    for (size_t i = 0; i < piece.states.size(); ++i) {
      const int64_t block = run.blocks.empty() ? 1 : run.blocks[i];
      piece.states[i] = run.states[i].narrow(0, begin / block, (numel + block - 1) / block);
    }
    piece.begin = run.begin + begin;
    update(piece);
  }
}
// That stay in the caches of a host.
inline constexpr int64_t kHostPiece = int64_t{1} << 14;

}  // namespace fsdp
