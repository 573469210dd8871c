// y = weight * round(x * rstd); the backward gives dx = rstd * (g - n * mean(g * n)) with g = dy * weight and
// n = x * rstd, and sums dy * round(n) over the rows. Sums of two tensors are rounded before they are read, as if they
// had been stored. Rows whose packets fit into the registers of their threads are read once.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kPacketsOfWarp = 64;       // rows of at most so many go to one warp each
constexpr int64_t kPacketsHeldByWarp = 256;  // in a forward, which needs fewer registers
constexpr int kWarpsOfBlock = 8;
constexpr unsigned kThreadsThatHold = 256;
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

// A thread's packets of a row, zeros beyond its end.
template <class T, int kCount, TeamKind kKind, int kHeld>
struct Part {
  using Packets = Packet<T, kCount>[kHeld];

  explicit __device__ Part(int64_t row_width) : width(row_width) {}

  __device__ int64_t column(int p) const {
    const Team<kKind> team{};
    return (static_cast<int64_t>(p) * team.members() + team.member()) * kCount;
  }
  __device__ bool is_inside(int p) const { return column(p) < width; }

  __device__ void load(const T* row, Packets& packets) const {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      packets[p] = is_inside(p) ? *reinterpret_cast<const Packet<T, kCount>*>(row + column(p)) : Packet<T, kCount>{};
    }
  }

  int64_t width;
};

// Without a residual.
template <class T, int kCount, TeamKind kKind, int kHeld>
__global__ void forward_held_rows(RmsNormForward a) {
  const Team<kKind> team{};
  const int64_t row = static_cast<int64_t>(blockIdx.x) * team.count() + team.index(), offset = row * a.width;
  if (row >= a.rows) return;
  const Part<T, kCount, kKind, kHeld> part(a.width);
  Packet<T, kCount> held[kHeld];
  part.load(static_cast<const T*>(a.x) + offset, held);
  float squares = 0, values[kCount], scales[kCount];
#pragma unroll
  for (int p = 0; p < kHeld; ++p) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += widen(held[p].values[j]) * widen(held[p].values[j]);
  }
  const float rstd = 1.0f / sqrtf(team.sum(squares) / static_cast<float>(a.width) + a.eps);
  if (team.member() == 0) a.rstd[row] = rstd;
#pragma unroll
  for (int p = 0; p < kHeld; ++p) {
    if (!part.is_inside(p)) break;
    load_packet(static_cast<const T*>(a.weight) + part.column(p), scales);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = round_to<T>(widen(held[p].values[j]) * rstd) * scales[j];
    store_packet(static_cast<T*>(a.y) + offset + part.column(p), values);
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

// Adds up the sums of the teams of a block, in order, as its row of partials.
template <class T, int kCount, TeamKind kKind, int kHeld>
__device__ inline void write_partials(const Part<T, kCount, kKind, kHeld>& part, const float (&sums)[kHeld][kCount],
                                      float* partial) {
  extern __shared__ float4 shared[];
  const Team<kKind> team{};
  float* all_sums = reinterpret_cast<float*>(shared);
  float* own = Team<kKind>::kIsWarp ? all_sums + team.index() * part.width : partial;
#pragma unroll
  for (int p = 0; p < kHeld; ++p) {
    if (part.is_inside(p)) store_packet(own + part.column(p), sums[p]);
  }
  if (!Team<kKind>::kIsWarp) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < part.width; i += blockDim.x) {
    float total = all_sums[i];
    for (int other = 1; other < team.count(); ++other) total += all_sums[other * part.width + i];
    partial[i] = total;
  }
}

// As backward_rows(); the next row is on its way while one is worked on.
template <class T, int kCount, TeamKind kKind, int kHeld>
__global__ void __launch_bounds__(kThreadsThatHold) backward_held_rows(RmsNormBackward a, int64_t rows_of_block) {
  const Team<kKind> team{};
  const Part<T, kCount, kKind, kHeld> part(a.width);
  const T *grad_y = static_cast<const T*>(a.grad_y), *x = static_cast<const T*>(a.x);
  const T* grad_sum = static_cast<const T*>(a.grad_sum);
  Packet<T, kCount> grad[kHeld], held[kHeld], next_grad[kHeld], next_held[kHeld], scale[kHeld], more[kHeld];
  float sums[kHeld][kCount] = {};
  part.load(static_cast<const T*>(a.weight), scale);
  const int64_t begin = blockIdx.x * rows_of_block, end = min(begin + rows_of_block, a.rows);
  int64_t row = begin + team.index();
  if (row < end) {
    part.load(grad_y + row * a.width, next_grad);
    part.load(x + row * a.width, next_held);
  }
  for (; row < end; row += team.count()) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      grad[p] = next_grad[p];
      held[p] = next_held[p];
    }
    const int64_t next = row + team.count();
    if (next < end) {
      part.load(grad_y + next * a.width, next_grad);
      part.load(x + next * a.width, next_held);
    }
    if (grad_sum != nullptr) part.load(grad_sum + row * a.width, more);
    const float rstd = a.rstd[row];
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float n = widen(held[p].values[j]) * rstd, g = widen(grad[p].values[j]);
        dot += g * widen(scale[p].values[j]) * n;
        sums[p][j] += g * round_to<T>(n);
      }
    }
    const float mean = team.sum(dot) / static_cast<float>(a.width);
    float values[kCount];
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      if (!part.is_inside(p)) break;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float n = widen(held[p].values[j]);
        values[j] = (widen(grad[p].values[j]) * widen(scale[p].values[j]) - n * rstd * mean) * rstd;
        if (grad_sum != nullptr) values[j] = round_to<T>(values[j]) + widen(more[p].values[j]);
      }
      store_packet(static_cast<T*>(a.grad_x) + row * a.width + part.column(p), values);
    }
  }
  write_partials(part, sums, a.partials + blockIdx.x * a.width);
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

// Whether rows of packets of 16 bytes go to kernels that hold them, and to which; false: they are too wide.
template <class T, int kCount>
bool run_forward_held(const RmsNormForward& a, int64_t packets, cudaStream_t stream) {
  if constexpr (kCount > 1) {
    const auto rows = static_cast<unsigned>(a.rows);
    constexpr unsigned kThreads = kThreadsThatHold, kWarps = kThreads / kWarp;
    const unsigned blocks = (rows + kWarps - 1) / kWarps;
    if (packets <= kWarp) {
      forward_held_rows<T, kCount, TeamKind::kWarp, 1><<<blocks, kThreads, 0, stream>>>(a);
    } else if (packets <= 2 * kWarp) {
      forward_held_rows<T, kCount, TeamKind::kWarp, 2><<<blocks, kThreads, 0, stream>>>(a);
    } else if (packets <= kPacketsHeldByWarp) {
      forward_held_rows<T, kCount, TeamKind::kWarp, kPacketsHeldByWarp / kWarp><<<blocks, kThreads, 0, stream>>>(a);
    } else if (packets <= 2 * kThreads) {
      forward_held_rows<T, kCount, TeamKind::kBlock, 2><<<rows, kThreads, 0, stream>>>(a);
    } else if (packets <= 4 * kThreads) {
      forward_held_rows<T, kCount, TeamKind::kBlock, 4><<<rows, kThreads, 0, stream>>>(a);
    } else {
      return false;
    }
    return true;
  }
  return false;
}

template <class T, int kCount>
cudaError_t run_forward(const RmsNormForward& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount;
  if (a.residual == nullptr && run_forward_held<T, kCount>(a, packets, stream)) return cudaGetLastError();
  if (packets <= kPacketsOfWarp) {
    const auto blocks = static_cast<unsigned>((a.rows + kWarpsOfBlock - 1) / kWarpsOfBlock);
    forward_rows<T, kCount, TeamKind::kWarp><<<blocks, kWarpsOfBlock * kWarp, 0, stream>>>(a);
  } else {
    forward_rows<T, kCount, TeamKind::kBlock>
        <<<static_cast<unsigned>(a.rows), threads_for(packets, kMostThreads), 0, stream>>>(a);
  }
  return cudaGetLastError();
}

// As many blocks as run at once: each works on one piece of the rows, and a second round would be mostly empty.
template <class Kernel>
int64_t blocks_at_once(Kernel kernel, unsigned threads, size_t shared) {
  int device = 0, processors = 0, of_each = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, static_cast<int>(threads), shared);
  return std::max<int64_t>(1, static_cast<int64_t>(processors) * of_each);
}

// How many rows of partials it wrote, none where rows are too wide to be held.
template <class T, int kCount>
int64_t run_backward_held(const RmsNormBackward& a, int64_t packets, cudaStream_t stream) {
  const auto run = [&](auto kernel, unsigned threads, size_t shared) {
    const int64_t most = std::min(num_rms_norm_partials(a.rows), blocks_at_once(kernel, threads, shared));
    const int64_t rows_of_block = (a.rows + most - 1) / most, blocks = (a.rows + rows_of_block - 1) / rows_of_block;
    kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(a, rows_of_block);
    return blocks;
  };
  if constexpr (kCount > 1) {
    constexpr unsigned kThreads = kThreadsThatHold;
    const size_t shared = kWarpsOfBlock * static_cast<size_t>(a.width) * sizeof(float);
    if (packets <= kWarp) return run(backward_held_rows<T, kCount, TeamKind::kWarp, 1>, kWarpsOfBlock * kWarp, shared);
    if (packets <= 2 * kWarp)
      return run(backward_held_rows<T, kCount, TeamKind::kWarp, 2>, kWarpsOfBlock * kWarp, shared);
    if (packets <= kThreads)
      return run(backward_held_rows<T, kCount, TeamKind::kBlock, 1>, threads_for(packets, kThreads), 0);
    if (packets <= 2 * kThreads) return run(backward_held_rows<T, kCount, TeamKind::kBlock, 2>, kThreads, 0);
  }
  return 0;
}

// How many rows of partials it wrote.
template <class T, int kCount>
int64_t run_backward(const RmsNormBackward& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount, blocks = num_rms_norm_partials(a.rows);
  if (const int64_t written = run_backward_held<T, kCount>(a, packets, stream)) return written;
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
  return blocks;
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
  int64_t count = 0;  // of partials; none: the sum is 0
  if (arrays.rows > 0) {
    const cudaError_t launched = with_packets(
        arrays.element, arrays.width, {arrays.grad_y, arrays.grad_sum, arrays.x, arrays.weight, arrays.grad_x},
        [&](auto zero, auto packet) {
          count = run_backward<decltype(zero), decltype(packet)::value>(arrays, stream);
          return cudaGetLastError();
        });
    if (launched != cudaSuccess) return launched;
  }
  if (arrays.element == Element::kFloat) return run_sum<float>(arrays, count, stream);
  return arrays.element == Element::kHalf ? run_sum<__half>(arrays, count, stream)
                                          : run_sum<__nv_bfloat16>(arrays, count, stream);
}

}  // namespace fsdp::kernels::cuda
