#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/gradient_factor.h"

namespace fsdp {

// What makes one optimizer another: what it keeps of a leaf, and what it does with it.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual const char* name() const = 0;
  virtual std::vector<LeafGroup> leaf_groups() const = 0;  // asked once
  virtual void update(const FlatRun& run, const GradientFactor& factor) = 0;
  virtual size_t num_groups() const = 0;
  virtual double& lr(size_t group) = 0;
};

// One whose groups all have options of one type.
template <class Options>
class RuleOf : public UpdateRule {
 public:
  size_t num_groups() const override { return options.size(); }
  double& lr(size_t group) override { return options.at(group).lr; }

  std::vector<Options> options;
};

// The same operators for all devices and dtypes: on the host in pieces that stay in its caches.
template <class Update>
void for_each_piece(const FlatRun& run, const Update& update) {
  const int64_t all = run.weight.numel();
  const int64_t longest = run.weight.is_cpu() ? int64_t{1} << 14 : all;
  for (int64_t begin = 0; begin < all; begin += longest) {
    const int64_t numel = std::min(longest, all - begin);
    FlatRun piece = run;
    piece.weight = run.weight.narrow(0, begin, numel);
    piece.gradient = run.gradient.narrow(0, begin, numel);
    if (run.copy.defined()) piece.copy = run.copy.narrow(0, begin, numel);
    for (at::Tensor& state : piece.states) state = state.narrow(0, begin, numel);
    update(piece);
  }
}

// Groups with their own decay, and otherwise these options.
template <class Group, class Options>
std::vector<Group> with_decay(std::vector<DecayGroup> groups, const Options& options) {
  std::vector<Group> result;
  for (DecayGroup& group : groups) {
    result.push_back({std::move(group.parameters), options});
    result.back().options.weight_decay = group.weight_decay;
  }
  return result;
}

}  // namespace fsdp
