// Launches of optimizer steps over flat memory; what they compute is told in kernels/flat/{adamw,sgd,lion,
// schedule_free,low_bit_adamw}.h. All return at once, with the error of the launch, and write nothing where n is 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::cuda {

struct AdamWArrays {
  float* weight;
  const float* gradient;
  float* m;
  float* v;
  void* copy;  // null: none
  Dtype copy_dtype;
  const float* gradient_scale;  // one number; null: 1
  int64_t n;
};
cudaError_t launch_adamw(const AdamWArrays& arrays, const AdamWFactors& factors, cudaStream_t stream);

enum class Momentum : uint8_t { kNone, kPlain, kNesterov };
struct SGDArrays {
  float* weight;
  const float* gradient;
  float* buffer;  // null: Momentum::kNone
  void* copy;
  Dtype copy_dtype;
  const float* gradient_scale;
  int64_t n;
};
cudaError_t launch_sgd(const SGDArrays& arrays, const SGDFactors& factors, Momentum momentum, cudaStream_t stream);

struct LionArrays {
  float* weight;
  const float* gradient;
  float* momentum;
  void* copy;
  Dtype copy_dtype;
  const float* gradient_scale;
  int64_t n;
};
cudaError_t launch_lion(const LionArrays& arrays, const LionFactors& factors, cudaStream_t stream);

enum class Iterate : uint8_t { kStarts, kGoesOn };  // written only, in the first step; or read too
struct ScheduleFreeArrays {
  float* weight;
  const float* gradient;
  float* iterate;
  float* squares;
  void* copy;
  Dtype copy_dtype;
  const float* gradient_scale;
  int64_t n;
};
cudaError_t launch_schedule_free(const ScheduleFreeArrays& arrays, const ScheduleFreeFactors& factors, Iterate iterate,
                                 cudaStream_t stream);

// Of a moment in 8 bits: n codes, one scale for each kCodedBlock elements from the first on, and what the codes mean:
// 256 numbers on the host, ascending.
inline constexpr int kCodedBlock = 256;
struct CodedArrays {
  uint8_t* codes;
  float* scales;
  const float* fractions;
};
struct LowBitAdamWArrays {
  float* weight;
  const float* gradient;
  CodedArrays first;
  CodedArrays second;
  void* copy;
  Dtype copy_dtype;
  const float* gradient_scale;
  int64_t n;
};
cudaError_t launch_low_bit_adamw(const LowBitAdamWArrays& arrays, const AdamWFactors& factors, cudaStream_t stream);

}  // namespace fsdp::kernels::cuda
