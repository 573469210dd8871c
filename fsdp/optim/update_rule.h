#pragma once

#include <cstddef>
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
  const std::vector<LeafGroup>& leaf_groups() const { return leaves_; }
  virtual void update(const FlatRun& run, const GradientFactor& factor) = 0;
  // Before a step, or what `caller` is; throws where the leaves are not the weights that train.
  virtual void check_trains(const char* /*caller*/) const {}
  virtual size_t num_groups() const = 0;
  virtual double& lr(size_t group) = 0;

 protected:
  std::vector<LeafGroup> leaves_;
};

// One whose groups all have options of one type.
template <class Options>
class RuleOf : public UpdateRule {
 public:
  size_t num_groups() const override { return options.size(); }
  double& lr(size_t group) override { return options.at(group).lr; }

  std::vector<Options> options;
};

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
