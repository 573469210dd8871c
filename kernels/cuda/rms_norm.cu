// y = weight * round(x * rstd); the backward gives dx = rstd * (g - n * mean(g * n)) with g = dy * weight and
// n = x * rstd, and sums dy * round(n) over the rows. Sums of two tensors are rounded before they are read, as if they
// had been stored.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kPacketsOfWarp = 64;  // rows of at most so many go to one warp each
constexpr int kWarpsOfBlock = 8;
constexpr int64_t kMostThreads = 512;
constexpr int64_t kMostPartials = 512;
constexpr int64_t kSharedBytes = 48 << 10;  // what every device gives a block without being asked
constexpr int kSumColumns = 32, kSumRows = 16;

template <class T, int kCount, TeamKind kKind>
__global__ void forward_rows(RmsNormForward a) {
  const Team<kKind> team{};
  const int64_t row = static_cast<int64_t>(blockIdx.x) * team.count() + team.index(), width = a.width;
  if (row >= a.rows) return;
  const T* x = static_cast<const T*>(a.x) + row * width;
  const T* residual = a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + row * width;
  const T* weight = static_cast<const T*>(a.weight);
  T *sum = static_cast<T*>(a.sum) + row * width, *y = static_cast<T*>(a.y) + row * width;
  const int64_t first = static_cast<int64_t>(team.member()) * kCount;
  const int64_t step = static_cast<int64_t>(team.members()) * kCount;
  float squares = 0, values[kCount], scales[kCount];
  for (int64_t i = first; i < width; i += step) {
    load_packet(x + i, values);
    if (residual != nullptr) {
      load_packet(residual + i, scales);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = round_to<T>(values[j] + scales[j]);
      store_packet(sum + i, values);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += values[j] * values[j];
  }
  const float mean = team.sum(squares) / static_cast<float>(width);
  const float rstd = 1.0f / sqrtf(mean + a.eps);
  if (team.member() == 0) a.rstd[row] = rstd;
  const T* normalised = residual == nullptr ? x : sum;
  for (int64_t i = first; i < width; i += step) {  // from the first-level cache; a thread reads what it wrote
    load_packet(normalised + i, values);
    load_packet(weight + i, scales);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = round_to<T>(values[j] * rstd) * scales[j];
    store_packet(y + i, values);
  }
}

template <int kCount>
__device__ inline void add_to(float* sums, const float (&values)[kCount]) {
  float total[kCount];
  load_packet(sums, total);
#pragma unroll
  for (int j = 0; j < kCount; ++j) total[j] += values[j];
  store_packet(sums, total);
}

// One row: writes grad_x and adds to this thread's columns of the team's sums.
template <class T, int kCount, TeamKind kKind>
__device__ inline void backward_row(const RmsNormBackward& a, int64_t row, float* sums) {
  const Team<kKind> team{};
  const int64_t width = a.width, offset = row * width;
  const T *grad_y = static_cast<const T*>(a.grad_y) + offset, *x = static_cast<const T*>(a.x) + offset;
  const T* grad_sum = a.grad_sum == nullptr ? nullptr : static_cast<const T*>(a.grad_sum) + offset;
  const T* weight = static_cast<const T*>(a.weight);
  T* grad_x = static_cast<T*>(a.grad_x) + offset;
  const int64_t first = static_cast<int64_t>(team.member()) * kCount;
  const int64_t step = static_cast<int64_t>(team.members()) * kCount;
  const float rstd = a.rstd[row];
  float dot = 0, grad[kCount], n[kCount], scales[kCount];
  for (int64_t i = first; i < width; i += step) {
    load_packet(grad_y + i, grad);
    load_packet(x + i, n);
    load_packet(weight + i, scales);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      n[j] *= rstd;
      dot += grad[j] * scales[j] * n[j];
      grad[j] *= round_to<T>(n[j]);
    }
    add_to(sums + i, grad);
  }
  const float mean = team.sum(dot) / static_cast<float>(width);
  for (int64_t i = first; i < width; i += step) {
    load_packet(grad_y + i, grad);
    load_packet(x + i, n);
    load_packet(weight + i, scales);
#pragma unroll
    for (int j = 0; j < kCount; ++j) grad[j] = (grad[j] * scales[j] - n[j] * rstd * mean) * rstd;
    if (grad_sum != nullptr) {
      load_packet(grad_sum + i, n);
#pragma unroll
      for (int j = 0; j < kCount; ++j) grad[j] = round_to<T>(grad[j]) + n[j];
    }
    store_packet(grad_x + i, grad);
  }
}

// Block i works on the i-th piece of the rows and writes the i-th row of partials. Each team sums in shared memory, or,
// where a row is too wide for that, the only team of the block in its row of partials.
template <class T, int kCount, TeamKind kKind>
__global__ void backward_rows(RmsNormBackward a, int64_t rows_of_block, bool sums_are_shared) {
  extern __shared__ float4 shared[];
  const Team<kKind> team{};
  const int64_t width = a.width;
  float* partial = a.partials + blockIdx.x * width;
  float* all_sums = reinterpret_cast<float*>(shared);
  float* sums = sums_are_shared ? all_sums + team.index() * width : partial;
  for (int64_t i = static_cast<int64_t>(team.member()) * kCount; i < width;
       i += static_cast<int64_t>(team.members()) * kCount) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[i + j] = 0;
  }
  const int64_t begin = blockIdx.x * rows_of_block, end = min(begin + rows_of_block, a.rows);
  for (int64_t row = begin + team.index(); row < end; row += team.count()) backward_row<T, kCount, kKind>(a, row, sums);
  if (!sums_are_shared) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float total = all_sums[i];
    for (int other = 1; other < team.count(); ++other) total += all_sums[other * width + i];
    partial[i] = total;
  }
}

template <class T>
__global__ void sum_partials(const float* partials, int64_t count, int64_t width, T* result) {
  __shared__ float sums[kSumRows][kSumColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < count; row += kSumRows) sum += partials[row * width + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int row = 1; row < kSumRows; ++row) sum += sums[row][threadIdx.x];
  result[column] = narrow_to<T>(sum);
}

template <class T, int kCount>
cudaError_t run_forward(const RmsNormForward& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount;
  if (packets <= kPacketsOfWarp) {
    const auto blocks = static_cast<unsigned>((a.rows + kWarpsOfBlock - 1) / kWarpsOfBlock);
    forward_rows<T, kCount, TeamKind::kWarp><<<blocks, kWarpsOfBlock * kWarp, 0, stream>>>(a);
  } else {
    forward_rows<T, kCount, TeamKind::kBlock>
        <<<static_cast<unsigned>(a.rows), threads_for(packets, kMostThreads), 0, stream>>>(a);
  }
  return cudaGetLastError();
}

template <class T, int kCount>
cudaError_t run_backward(const RmsNormBackward& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount, blocks = num_rms_norm_partials(a.rows);
  const int64_t rows_of_block = (a.rows + blocks - 1) / blocks;
  const auto row_bytes = static_cast<size_t>(a.width) * sizeof(float);
  if (packets <= kPacketsOfWarp) {
    backward_rows<T, kCount, TeamKind::kWarp>
        <<<static_cast<unsigned>(blocks), kWarpsOfBlock * kWarp, kWarpsOfBlock * row_bytes, stream>>>(a, rows_of_block,
                                                                                                      true);
  } else {
    const bool fits = row_bytes <= kSharedBytes - 1024;  // beside what the block's sum needs
    backward_rows<T, kCount, TeamKind::kBlock>
        <<<static_cast<unsigned>(blocks), threads_for(packets, kMostThreads), fits ? row_bytes : 0, stream>>>(
            a, rows_of_block, fits);
  }
  return cudaGetLastError();
}

template <class T>
cudaError_t run_sum(const RmsNormBackward& a, int64_t count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((a.width + kSumColumns - 1) / kSumColumns);
  sum_partials<<<blocks, dim3(kSumColumns, kSumRows), 0, stream>>>(a.partials, count, a.width,
                                                                   static_cast<T*>(a.grad_weight));
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_rms_norm_forward(const RmsNormForward& arrays, cudaStream_t stream) {
  if (arrays.rows == 0 || arrays.width == 0) return cudaSuccess;
  return with_packets(
      arrays.element, arrays.width, {arrays.x, arrays.residual, arrays.weight, arrays.sum, arrays.y},
      [&](auto zero, auto count) { return run_forward<decltype(zero), decltype(count)::value>(arrays, stream); });
}

int64_t num_rms_norm_partials(int64_t rows) {
  const int64_t pieces = (rows + kWarpsOfBlock - 1) / kWarpsOfBlock;
  return std::min(pieces, kMostPartials);
}

cudaError_t launch_rms_norm_backward(const RmsNormBackward& arrays, cudaStream_t stream) {
  if (arrays.width == 0) return cudaSuccess;
  if (arrays.rows > 0) {
    const cudaError_t launched = with_packets(
        arrays.element, arrays.width, {arrays.grad_y, arrays.grad_sum, arrays.x, arrays.weight, arrays.grad_x},
        [&](auto zero, auto count) { return run_backward<decltype(zero), decltype(count)::value>(arrays, stream); });
    if (launched != cudaSuccess) return launched;
  }
  const int64_t count = num_rms_norm_partials(arrays.rows);  // 0: the sum is 0
  return arrays.element == Element::kFloat ? run_sum<float>(arrays, count, stream)
                                           : run_sum<__nv_bfloat16>(arrays, count, stream);
}

}  // namespace fsdp::kernels::cuda
