#include "fsdp/plan/inspect.h"

#include <algorithm>
#include <string>

#include "fsdp/base/check.h"
#include "fsdp/plan/activation_account.h"
#include "fsdp/plan/module_units.h"
#include "io/base/error.h"

namespace fsdp::plan {
namespace {

std::optional<io::DType> planned_type(const std::optional<at::ScalarType>& type, const char* what) {
  if (!type) return std::nullopt;
  if (*type == at::kFloat) return io::DType::F32;
  if (*type == at::kBFloat16) return io::DType::BF16;
  if (*type == at::kHalf) return io::DType::F16;
  if (*type == at::kDouble) return io::DType::F64;
  FSDP_THROW(kUsage, "[inspect] Precision::", what, ": got ", *type, ", expected a floating-point type.");
}

void check_axes(const Mesh& mesh) {
  for (const MeshAxis& axis : mesh.axes()) {
    FSDP_CHECK(axis.name == "shard" || axis.name == "replicate" || axis.size == 1, "[inspect] mesh ", mesh.describe(),
               ": axis '", axis.name, "' has ", axis.size, " ranks, expected the axes 'replicate' and 'shard'.");
  }
}

Setup setup_of(const Mesh& mesh, const InspectOptions& options) {
  const ShardOptions& shard = options.shard;
  check_axes(mesh);
  FSDP_CHECK(!shard.mesh_of,
             "[inspect] got ShardOptions::mesh_of; parameters with a mesh of their own are not planned.");
  FSDP_CHECK(!shard.replicate && !shard.precision.main_grad,
             "[inspect] ShardOptions::replicate or Precision::main_grad is set, expected neither: plans have one "
             "strategy and main grads of the parameters' dtype.");
  Setup setup;
  setup.replicas = mesh.size("replicate");
  setup.shards = mesh.size("shard");
  setup.strategy = shard.strategy;
  if (shard.reshard_after_forward) {
    const auto* group = std::get_if<int>(&*shard.reshard_after_forward);
    if (group != nullptr) setup.reshard_after_forward = int64_t{*group};
    if (group == nullptr) setup.reshard_after_forward = std::get<bool>(*shard.reshard_after_forward);
  }
  setup.precision = {planned_type(shard.precision.param, "param"), planned_type(shard.precision.reduce, "reduce"),
                     planned_type(shard.precision.accumulate, "accumulate")};
  setup.granularity = shard.layout.granularity;
  setup.block = shard.layout.block;
  setup.owners = shard.layout.owners;
  setup.optimizer = options.optimizer;
  setup.replica_reduce = shard.replica_reduce;
  setup.schedule = shard.schedule;
  if (shard.whole_weights == WholeWeights::kCopied) setup.whole_shard = WholeShard::kCopied;
  setup.node_size = std::max<int64_t>(1, std::min(options.ranks_per_node, setup.world()));
  const bool on_gpu = shard.device && shard.device->is_cuda();
  setup.transport = options.transport.value_or(on_gpu                             ? Transport::kNccl
                                               : setup.node_size == setup.world() ? Transport::kSharedMemory
                                                                                  : Transport::kTwoLevel);
  setup.copies = options.copies;
  setup.work = options.work;
  return setup;
}

}  // namespace

Report inspect(torch::nn::Module& module, const Mesh& mesh, const InspectOptions& options) {
  try {
    const Setup setup = setup_of(mesh, options);
    check(setup);
    const ModuleUnits units = units_of(module, options);
    if (!options.forward) return make_report(units.model, setup, options.report);
    return make_report(units.model, setup, options.report, account_for_activations(module, units, options.forward));
  } catch (const io::Error& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

}  // namespace fsdp::plan
