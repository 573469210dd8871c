#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/group/parameter_group.h"
#include "fsdp/optim/runs/flat_run.h"

namespace fsdp {

class DiskPass;

// A tensor that an optimizer keeps of each of its leaves, zero at first.
struct StateSpec {
  std::string name;                          // in checkpoints
  std::optional<at::ScalarType> dtype = {};  // unset: the weight's
  int64_t block = 1;                         // one number for so many elements of the parameter

  bool operator==(const StateSpec&) const = default;
};

// The weights that a rule can update.
enum class WeightTypes {
  kWide,  // fp32, and fp64 on the CPU
  // Those, and bf16 and fp16 on the CPU: the rule minds their rounding, and the types of its states. RunOf::kBlocks:
  // bf16 alone.
  k16Bit
};

// What an optimizer's rule wants of the leaves with some options.
struct LeafNeeds {
  std::vector<StateSpec> states;
  RunOf run = RunOf::kNeighbours;
  WeightTypes weights = WeightTypes::kWide;
  int64_t dims = 0;  // that a leaf must have; 0: any

  // Whether each leaf's states are tensors of their own: those that have not a number for each of its elements.
  bool keeps_leaves_apart() const;

  bool operator==(const LeafNeeds&) const = default;
};

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
  // leaf, stands in two groups, has other dims than its needs say, or is cut where they forbid it.
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
    size_t number = 0;  // among all that the optimizer was given
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
  void update_run(size_t first, size_t end, const Update& update, DiskPass& pass);
  void add_leaf(const at::Tensor& tensor, size_t options, size_t number);
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
