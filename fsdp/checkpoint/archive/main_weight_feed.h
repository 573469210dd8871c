#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp {

// Brings whole main weights to rank 0, group after group in the order in which it asks for them; of the gathered ones
// it holds one group at a time.
class MainWeightFeed {
 public:
  // `groups`: the same on every rank.
  MainWeightFeed(const World& world, std::vector<std::shared_ptr<ParameterGroup>> groups);

  // On rank 0, while the other ranks serve(): runs `action`, which may take weights, and lets the others go, whatever
  // it throws. COLLECTIVE.
  void lead(const std::function<void()>& action);
  // Inside lead(): all of a parameter, 1-D, in the main weight's dtype. Valid until the next call.
  at::Tensor take(const GroupMember& member);

  // On the other ranks. COLLECTIVE.
  void serve();

 private:
  void gather(size_t index);

  const World& world_;
  std::vector<std::shared_ptr<ParameterGroup>> groups_;
  std::optional<size_t> held_;
  at::Tensor weight_;  // of the group that is held
};

}  // namespace fsdp
