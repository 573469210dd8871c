#include "fsdp/unit/sharding/precision_of.h"

#include <algorithm>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/precision/fp8_wire.h"

namespace fsdp {

void check_precision(const ShardOptions& options) {
  FSDP_CHECK(!options.precision.gather || options.precision.gather == at::kFloat8_e4m3fn,
             "[fully_shard] Precision::gather: got ", *options.precision.gather,
             ", expected kFloat8_e4m3fn, or unset.");
  FSDP_CHECK(!options.precision.gather || !options.device || options.device->is_cpu(),
             "[fully_shard] Precision::gather: got kFloat8_e4m3fn on ", options.device->str(),
             ", expected it on the CPU: on GPUs weights "
             "travel in bf16 in this version, and fsdp::fp8() rounds what arrives.");
  for (const auto& dtype : {options.precision.main_grad, options.precision.buffers}) {
    FSDP_CHECK(!dtype || at::isFloatingType(*dtype), "[fully_shard] Precision::main_grad or buffers: got ", *dtype,
               ", expected a floating-point type.");
  }
}

Precision precision_of(const SubjectParameter& parameter, const Precision& precision) {
  const std::vector<ModuleKind>& kept = precision.keep_fp32;
  if (!at::isFloatingType(parameter.tensor.scalar_type())) return {};  // codes are what they are
  Precision own = precision;
  if (parameter.kind && std::find(kept.begin(), kept.end(), *parameter.kind) != kept.end()) own.param.reset();
  const at::ScalarType compute = own.param.value_or(parameter.tensor.scalar_type());
  if (own.gather && !wire_recipe_of(parameter.tensor, parameter.name, compute)) own.gather.reset();
  return own;
}

}  // namespace fsdp
