#include "fsdp/unit/sharding/agreement.h"

#include <ATen/ATen.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

std::string describe(const std::optional<ReshardAfterForward>& reshard) {
  if (!reshard) return "by strategy";
  if (const int* size = std::get_if<int>(&*reshard)) return std::to_string(*size);
  return std::get<bool>(*reshard) ? "true" : "false";
}

uint64_t digest_of_shape(const UnitDescription& unit) {
  std::string text;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const at::Tensor& parameter = unit.parameters[i];
    text += c10::str(unit.names[i], parameter.sizes(), parameter.scalar_type(), parameter.requires_grad(), ";");
  }
  const ShardOptions& options = *unit.options;
  text += c10::str(
      static_cast<int>(options.precision.gather.value_or(at::kLong)), "/", static_cast<int>(options.strategy), "/",
      static_cast<int>(options.layout.granularity), "/", options.layout.block, "/",
      static_cast<int>(options.layout.owners), "/", static_cast<int>(options.precision.param.value_or(at::kLong)), "/",
      static_cast<int>(options.precision.reduce.value_or(at::kLong)), "/", describe(options.reshard_after_forward), "/",
      static_cast<int>(options.initial_weights), "/", static_cast<int>(options.replica_reduce), "/",
      describe(options.schedule), "/", unit.meshes, "/", static_cast<int>(options.unused), "/",
      static_cast<int>(options.buffers), "/", options.schedule.max_bytes, "/",
      static_cast<int>(options.precision.accumulate.value_or(at::kLong)), "/",
      static_cast<int>(options.precision.main_grad.value_or(at::kLong)), "/",
      static_cast<int>(options.precision.buffers.value_or(at::kLong)), "/", static_cast<int>(options.ignored_gradients),
      "/", static_cast<int>(options.sum_order), "/", static_cast<int>(options.writes));
  for (const ModuleKind kind : options.precision.keep_fp32) text += c10::str("/", static_cast<int>(kind));
  return XXH3_64bits(text.data(), text.size());
}

uint64_t digest_of_values(const std::vector<at::Tensor>& parameters) {
  uint64_t digest = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor host = parameter.detach().cpu();
    digest = XXH3_64bits_withSeed(host.const_data_ptr(), host.nbytes(), digest);
  }
  return digest;
}

}  // namespace

void agree_on_unit(const UnitDescription& unit, comm::Comm& comm) {
  if (comm.size() == 1) return;
  const bool verify = unit.options->initial_weights == InitialWeights::kVerify;
  const auto shape = static_cast<int64_t>(digest_of_shape(unit));
  const int64_t values = verify ? static_cast<int64_t>(digest_of_values(unit.parameters)) : 0;
  const auto digests = comm.gather_numbers({shape, values}, {"agree on a unit", "", ""});
  const std::string unit_name = unit.names.empty() ? "without parameters" : "with '" + unit.names.front() + "'";
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    const int global = comm.ranks()[rank];
    FSDP_CHECK(
        digests[rank][0] == digests[0][0], "[fully_shard] unit ", unit_name, ": rank ", global,
        " has other parameters, shapes, dtypes or options than rank 0. Build the same model with the same options "
        "on every rank, and shard the modules in the same order.");
    FSDP_CHECK(digests[rank][1] == digests[0][1], "[fully_shard] unit ", unit_name, ": rank ", global,
               " starts from other weights than rank 0. Seed all ranks alike (torch::manual_seed) before building the "
               "model, or set ShardOptions::initial_weights to InitialWeights::kBroadcast.");
  }
  if (verify) return;
  for (const at::Tensor& parameter : unit.parameters) {
    comm.broadcast(parameter.detach().view({-1}), 0, {"broadcast weights", unit.names.front(), ""});
  }
}

}  // namespace fsdp
