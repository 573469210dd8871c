// What training a model of a C++ program will take on one of many ranks, before memory for it exists.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "fsdp/mesh/mesh.h"
#include "fsdp/unit/options.h"
#include "fsdp/unit/shard_where.h"
#include "plan/report.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp::plan {

// How the program is going to train the model.
struct InspectOptions {
  ShardOptions shard = {};  // of every fully_shard()
  // The modules that become units beside the root, in the order in which a forward reads them. None inside another, nor
  // inside one that `where` chooses, which is what shard_where() gets; those come in the order of registration.
  std::vector<torch::nn::Module*> units = {};
  WrapPolicy where = {};
  Optimizer optimizer = Optimizer::kAdamW;
  // Microbatches of a step; for models of text their sequences and tokens, which the report only repeats.
  Work work = {.microbatches = 1, .microbatch_sequences = 1, .sequence_length = 1};
  int64_t ranks_per_node = 8;
  // Unset: NCCL for weights on a GPU, else shared memory within nodes, and Gloo between them if there are several.
  std::optional<Transport> transport = {};
  GatheredCopies copies = GatheredCopies::kOnePerHost;
  // What one rank computes in a microbatch; returns the loss. Called once, on tensors without memory: activations are
  // what its graph keeps until the backward, and what the backward holds beside it. Empty: they are left out.
  std::function<at::Tensor()> forward = {};
  ReportOptions report = {};
};

// The plan of `module`, deferred or not, which is neither changed nor given memory: the same arithmetic of layouts,
// strategies and schedules as at run time. `mesh` may be of ranks that do not exist: its world is asked for nothing but
// its size. Exact for weights, gradients, optimizer and traffic where a step reads the root's parameters that
// are registered before the units, the units one after the other, and the root's others; for buffers where each unit
// trains parameters of one element type, too. Local. Throws Error(kUsage) for what fully_shard() would refuse, a module
// that is sharded already, units inside units, and ShardOptions::mesh_of.
Report inspect(torch::nn::Module& module, const Mesh& mesh, const InspectOptions& options = {});

}  // namespace fsdp::plan
