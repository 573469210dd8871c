#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/buffer/fp8_agreement.h"
#include "fsdp/group/group_links.h"
#include "fsdp/group/group_owner.h"
#include "fsdp/group/main_weights.h"
#include "fsdp/group/whole_weights.h"
#include "fsdp/layout/planner.h"
#include "fsdp/precision/precision.h"
#include "fsdp/strategy/residence.h"
#include "fsdp/strategy/strategy.h"
#include "fsdp/strategy/sum_order.h"

namespace fsdp {

// What a group is made of. The parameters are in flat order and share dtype and trainability.
struct GroupSpec {
  std::string unit_name;
  int part = 0;  // position among the unit's groups
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  c10::Device device = c10::kCPU;  // where the weights live; the parameters may still be on the CPU
  // Over the ranks that share the main weight: links.shard's, times links.replicate's where there are replicas.
  layout::FlatLayout layout;
  Strategy strategy = Strategy::kOptimGradsParams;
  SumOrder sum_order = SumOrder::kAsTheyCome;
  Precision precision;
  WholeWeights whole_weights = WholeWeights::kInPlace;
  MainWeights main_weights = MainWeights::kOnDevice;
  std::shared_ptr<DiskMemory> disk;  // for MainWeights::kOnDisk
  GroupLinks links;
  std::shared_ptr<BufferAllocator> allocator;
  std::shared_ptr<Fp8Agreement> fp8_agreement;  // of its Context
  std::weak_ptr<GroupOwner> owner;
};

}  // namespace fsdp
