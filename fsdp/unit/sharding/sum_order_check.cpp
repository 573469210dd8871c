#include "fsdp/unit/sharding/sum_order_check.h"

#include "fsdp/base/check.h"
#include "fsdp/group/cut.h"

namespace fsdp {

void check_sum_order(const SubjectParameters& members, const ShardOptions& options, c10::Device device) {
  if (options.sum_order == SumOrder::kAsTheyCome || !members.front().tensor.requires_grad()) return;
  FSDP_CHECK(options.replica_reduce == ReduceTiming::kLastMicrobatch,
             "[fully_shard] ShardOptions::sum_order: got kTree with replica_reduce kEveryMicrobatch, expected "
             "kLastMicrobatch: replicas are the last stage of the tree.");
  FSDP_CHECK(device.is_cpu(), "[fully_shard] ShardOptions::sum_order: got kTree for ", device,
             ", expected the CPU: between GPUs sums are made in an order of NCCL's choice. Use kAsTheyCome.");
  const at::ScalarType main = members.front().tensor.scalar_type();
  FSDP_CHECK(main == at::kFloat || main == at::kDouble, "[fully_shard] ShardOptions::sum_order: got kTree for '",
             members.front().name, "' with main weights and sums of gradients in ", main,
             ", expected fp32 or fp64. Shard fp32 parameters with Precision::bf16().");
  const Precision& precision = options.precision;
  for (const auto& dtype : {precision.reduce, precision.accumulate, precision.main_grad}) {
    FSDP_CHECK(dtype.value_or(main) == main, "[fully_shard] ShardOptions::sum_order: got kTree with gradients in ",
               *dtype, " beside main weights in ", main,
               ", expected one type: what is rounded between two sums depends on who adds them up. Leave "
               "Precision::reduce, accumulate and main_grad unset.");
  }
  for (const SubjectParameter& member : members) {
    FSDP_CHECK(!registry::find_cut(member.tensor), "[fully_shard] ShardOptions::sum_order: got kTree for '",
               member.name,
               "', which is cut over the axis 'tp', expected no tensor parallelism: products of parts are other sums "
               "than whole ones. Use kAsTheyCome.");
  }
}

}  // namespace fsdp
