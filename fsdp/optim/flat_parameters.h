#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "fsdp/group/parameter_group.h"

namespace fsdp {

// What one optimizer kernel call works on: 1-D fp32 tensors of equal length.
struct FlatRun {
  at::Tensor weight;
  at::Tensor gradient;
  at::Tensor copy;                 // low-precision model weight to write along, or undefined
  std::vector<at::Tensor> states;  // the optimizer's, zero at first
  int64_t step = 0;                // 1 for the first update of these elements
  size_t options = 0;              // index of the optimizer's group
};

// Of each state; unset: the weight's.
using StateDtypes = std::vector<std::optional<at::ScalarType>>;

// The tensors of one optimizer with their flat state. Leaves that lie side by side in a main weight and have the same
// options and age are updated in one run, alignment gaps included (weight, gradient and state are zero there and stay
// so).
class FlatParameters {
 public:
  // groups[k]: the leaves with options k. One flat tensor for each of `states` per parameter group (allocated on first
  // use).
  // Throws Error(kUsage): a tensor is no fp32 leaf, or stands in two groups.
  FlatParameters(const std::vector<std::vector<at::Tensor>>& groups, StateDtypes states);
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
  std::vector<at::Tensor> states_of(const at::Tensor& leaf);

 private:
  struct Leaf {
    at::Tensor tensor;
    std::shared_ptr<ParameterGroup> group;  // null for a plain tensor
    size_t index = 0;                       // in the group
    int64_t begin = 0;                      // in the group's local main weight
    size_t options = 0;
    int64_t step = 0;
  };

  void enter_library() const;
  void update_run(size_t first, size_t end, const Update& update);
  void add_leaf(const at::Tensor& tensor, size_t options);
  size_t find(const at::Tensor& leaf) const;
  size_t end_of_run(size_t first) const;
  bool has_flat_gradient(const Leaf& leaf) const;
  FlatRun make_run(size_t first, size_t end, bool write_copy);
  std::vector<at::Tensor>& states_of(const Leaf& leaf);

  StateDtypes state_dtypes_;
  std::set<std::shared_ptr<ParameterGroup>> in_backward_;  // groups that update in the backward
  std::vector<Leaf> leaves_;                               // by group, then position
  std::map<const void*, std::vector<at::Tensor>> states_;  // by group, or by plain tensor
};

}  // namespace fsdp
