#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "io/hub/model_folder.h"
#include "models/lora.h"
#include "train/model/adapters/adapter_start.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// The two factors of the part of a matrix that its largest singular values make: A = sqrt(S / scale) V^T [rank, in], B
// = U sqrt(S / scale) [out, rank], fp32. Exact up to kExactSize rows or columns; above that the subspace that rounds of
// products find from random vectors, which `name` and `seed` decide. Of two signs the one in which the largest number
// of a column of U is positive. On the CPU, by one thread: the bits do not depend on who computes them.
struct PrincipalFactors {
  at::Tensor a, b;
};
inline constexpr int64_t kExactSize = 1024;
PrincipalFactors principal_factors(const at::Tensor& weight, int64_t rank, double scale, uint64_t seed,
                                   const std::string& name);

// COLLECTIVE. Of each map with an adapter, from the weights in `folder`: a rank computes whole matrices, one after the
// other, and all ranks get all factors, whatever they have of the model. After: Meng et al. 2024 (PiSSA), Halko et al.
// 2011. Throws Error(kUsage) for a matrix of fewer rows or columns than the rank.
AdapterStart principal_start(const ShardedModel& model, const World& world, const io::ModelFolder& folder,
                             const models::LoraConfig& lora, uint64_t seed);

// Fills this rank's part of the adapters, and takes what they hold from its part of weights that are numbers, computed
// in fp32 and rounded to what they rest in. Weights that are codes are left to load_codes(). Local; counts as a write
// on every rank.
void begin_with(const ShardedModel& model, const AdapterStart& start);

}  // namespace fsdp::train
