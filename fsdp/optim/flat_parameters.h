#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/group/parameter_group.h"

namespace fsdp {

// A tensor that an optimizer keeps of each of its leaves, zero at first.
struct StateSpec {
  std::string name;                          // in checkpoints
  std::optional<at::ScalarType> dtype = {};  // unset: the weight's
  int64_t block = 1;                         // one number for so many elements of the parameter

  bool operator==(const StateSpec&) const = default;
};

// What an update is computed from.
enum class RunOf {
  kNeighbours,  // each element alone: leaves that lie side by side are updated together
  kBlocks,      // the elements of a block (the largest of the states'), which no border between ranks cuts; fp32
  kTensor,      // all of a matrix: it has two dims and lies whole on one rank, which updates it alone
};

// What an optimizer's rule wants of the leaves with some options.
struct LeafNeeds {
  std::vector<StateSpec> states;
  RunOf run = RunOf::kNeighbours;

  bool operator==(const LeafNeeds&) const = default;
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
};

// Calls update(piece) for parts of at most `longest` elements that follow each other.
template <class Update>
void for_each_piece(const FlatRun& run, int64_t longest, const Update& update) {
  for (int64_t begin = 0; begin < run.weight.numel(); begin += longest) {
    const int64_t numel = std::min(longest, run.weight.numel() - begin);
    FlatRun piece = run;
    piece.weight = run.weight.narrow(0, begin, numel);
    piece.gradient = run.gradient.narrow(0, begin, numel);
    if (run.copy.defined()) piece.copy = run.copy.narrow(0, begin, numel);
    for (at::Tensor& state : piece.states) state = state.narrow(0, begin, numel);
    update(piece);
  }
}
// That stay in the caches of a host.
inline constexpr int64_t kHostPiece = int64_t{1} << 14;

// Leaves that share options, and what these need.
struct LeafGroup {
  std::vector<at::Tensor> leaves;
  LeafNeeds needs;
};

// One leaf's part of a state, by reference.
struct LeafStateTensor {
  std::string name;
  at::Tensor tensor;  // 1-D
  int64_t block = 1;  // elements of the leaf for each number
};

// The tensors of one optimizer with their flat state. Leaves that lie side by side in a main weight and have the same
// options and age are updated in one run, alignment gaps included (weight, gradient and state are zero there and stay
// so). State is allocated on first use: where one rule has all leaves of a parameter group, one tensor like its main
// weight for each StateSpec; else one for each stretch of leaves with the same needs.
class FlatParameters {
 public:
  // groups[k]: the leaves with options k. `optimizer` is its name in errors. Throws Error(kUsage): a tensor is no fp32
  // leaf, stands in two groups, is no matrix where RunOf::kTensor asks for one, or is cut where its needs forbid it.
  FlatParameters(std::string optimizer, const std::vector<LeafGroup>& groups);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  using Update = std::function<void(const FlatRun&)>;

  // Calls `update` for every run of leaves that have a gradient, and lets the weights' versions move. A library entry.
  void for_each_run(const Update& update);
  // From now on sharded leaves are updated in the backward, group by group. A library entry.
  void update_in_backward(const Update& update);
  int64_t state_bytes() const;

  // For checkpoints, leaf by leaf. Local.
  std::vector<at::Tensor> leaves() const;
  int64_t steps_of(const at::Tensor& leaf) const;  // updates so far
  void set_steps_of(const at::Tensor& leaf, int64_t steps);
  // This leaf's part of each state, 1-D, by reference; made where there is none yet.
  std::vector<LeafStateTensor> states_of(const at::Tensor& leaf);

 private:
  struct Leaf {
    at::Tensor tensor;
    std::shared_ptr<ParameterGroup> group;  // null for a plain tensor
    size_t index = 0;                       // in the group
    int64_t begin = 0;                      // in the group's local main weight
    size_t options = 0;
    int64_t step = 0;
    size_t stretch = 0;
  };
  // Elements [begin, begin + numel) of a group's local main weight, or of a plain tensor, whose states are together.
  struct Stretch {
    int64_t begin = 0;
    int64_t numel = 0;
    std::vector<at::Tensor> states;
  };

  void enter_library() const;
  void update_run(size_t first, size_t end, const Update& update);
  void add_leaf(const at::Tensor& tensor, size_t options);
  std::string name_of(const Leaf& leaf) const;
  void check_uncut(const Leaf& leaf) const;
  void check_whole(const Leaf& leaf) const;
  void check_blocks(const Leaf& leaf) const;
  void lay_out_states();
  bool starts_stretch(size_t i) const;
  void add_to_stretch(size_t i, bool is_new);
  const LeafNeeds& needs_of(const Leaf& leaf) const { return needs_[leaf.options]; }
  size_t find(const at::Tensor& leaf) const;
  size_t end_of_run(size_t first) const;
  bool has_flat_gradient(const Leaf& leaf) const;
  FlatRun make_run(size_t first, size_t end, bool write_copy);
  const Stretch& states_of(const Leaf& leaf);

  std::string optimizer_;
  std::vector<LeafNeeds> needs_;                           // by options
  std::set<std::shared_ptr<ParameterGroup>> in_backward_;  // groups that update in the backward
  std::vector<Leaf> leaves_;                               // by group, then position
  std::vector<Stretch> stretches_;
};

}  // namespace fsdp
