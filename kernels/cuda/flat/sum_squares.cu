#include "kernels/cuda/flat/flat.cuh"
#include "kernels/cuda/flat/flat_launch.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kFoursPerThread = 4;  // at least, before more blocks are used
constexpr int64_t kMostPartials = 1024;

// The sum over the block's threads, in a fixed order; valid in thread 0.
__device__ double sum_over_block(double value) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(0xffffffffU, value, distance);
  }
  __shared__ double sums[kBlockThreads / kWarpThreads];
  if (threadIdx.x % kWarpThreads == 0) sums[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (const double sum : sums) total += sum;
  }
  return total;
}

// Four squares are added in fp32, everything else in fp64. Which thread takes which elements depends on n and on the
// values' address only.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) sum_squares_of_blocks(const T* values, Cut cut, double* partials) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = thread; i < cut.fours; i += num_threads) {
    const float4 v = load4(values + cut.head + 4 * i);
    sum += __fmaf_rn(v.x, v.x, __fmul_rn(v.y, v.y)) + __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w));
  }
  for (int64_t i = thread; i < cut.singles(); i += num_threads) {
    const double value = to_float(values[cut.single(i)]);
    sum += value * value;
  }
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlockThreads) sum_of_partials(const double* partials, int64_t count, double* sum) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) total += partials[i];
  total = sum_over_block(total);
  if (threadIdx.x == 0) *sum = total;
}

}  // namespace

int64_t num_partial_sums(int64_t n) {
  return num_blocks(n, int64_t{4} * kFoursPerThread * kBlockThreads, kMostPartials);
}

cudaError_t launch_sum_squares(const SquaresArrays& arrays, cudaStream_t stream) {
  const int64_t count = num_partial_sums(arrays.n);
  const cudaError_t launched = with_type(arrays.dtype, [&](auto zero) {
    const auto* values = static_cast<const decltype(zero)*>(arrays.values);
    sum_squares_of_blocks<<<static_cast<unsigned>(count), kBlockThreads, 0, stream>>>(
        values, make_cut(arrays.n, {values}), arrays.partials);
    return cudaGetLastError();
  });
  if (launched != cudaSuccess) return launched;
  sum_of_partials<<<1, kBlockThreads, 0, stream>>>(arrays.partials, count, arrays.sum);
  return cudaGetLastError();
}

}  // namespace fsdp::kernels::cuda
