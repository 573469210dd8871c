// Launches of the kernels over flat memory but optimizers' steps (step_launch.h); what they compute is told in
// kernels/flat/{pack,sum_chunks,sum_squares}.h. All return at once, with the error of the launch, and write nothing
// where n is 0 but sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace fsdp::kernels::cuda {

enum class Placing : uint8_t { kWrite, kAdd };
struct PackArrays {
  void* destination;
  Dtype destination_dtype;
  const void* gradient;
  Dtype gradient_dtype;
  int64_t n;
};
cudaError_t launch_pack(const PackArrays& arrays, float scale, Placing placing, cudaStream_t stream);

// As many pointers as still fit beside the rest among a kernel's arguments, with room to spare.
inline constexpr int kMostChunks = 256;
struct ChunkArrays {
  void* output;
  Dtype output_dtype;
  const void* chunks[kMostChunks];
  int num_chunks;  // at least 1
  Dtype chunk_dtype;
  int64_t n;
};
cudaError_t launch_sum_chunks(const ChunkArrays& arrays, Placing placing, cudaStream_t stream);

// partials: num_partial_sums(n) numbers of scratch. sum: one number.
int64_t num_partial_sums(int64_t n);
struct SquaresArrays {
  const void* values;
  Dtype dtype;
  int64_t n;
  double* partials;
  double* sum;
};
cudaError_t launch_sum_squares(const SquaresArrays& arrays, cudaStream_t stream);

}  // namespace fsdp::kernels::cuda
