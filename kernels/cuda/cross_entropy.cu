// One block per row of logits. A row is read once for its log-sum-exp, which is carried along (top, sum of e^(x -
// top)), and once more, mostly from the second-level cache, where its gradient is written.
#include <cmath>

#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kIgnored = -100;  // kIgnoreIndex of kernels/operators/cross_entropy.h
constexpr int64_t kMostThreads = 512;
constexpr int kSumThreads = 1024;

// What a row is about, before its logits are looked at.
enum class RowKind : uint8_t { kIgnored, kValid, kBad };

__device__ inline RowKind kind_of(int64_t target, int64_t vocab) {
  if (target == kIgnored) return RowKind::kIgnored;
  return target >= 0 && target < vocab ? RowKind::kValid : RowKind::kBad;
}

struct RowSums {
  float log_sum_exp;
  float total;  // of the logits
};

// e^x for x <= 0, off by at most 2 + |x| units in the last place: x is the difference to the highest logit, or to
// the sum's logarithm, which makes terms smaller faster than it makes them wrong.
__device__ inline float exp_of(float x) { return __expf(x); }

// Adds e^(values - top). Where all logits so far are -inf they add nothing; NaN stays NaN.
template <int kCount>
__device__ inline void add_weights(const float (&values)[kCount], float top, float& sum) {
  if (top == -INFINITY) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum += values[j] == -INFINITY ? 0.0f : values[j];
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum += exp_of(values[j] - top);
}

// Called by all threads of the block; the same result in each.
template <class T, int kCount>
__device__ inline RowSums sum_row(const T* logits, int64_t vocab) {
  float top = -INFINITY, sum = 0, total = 0, values[kCount];
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
#pragma unroll 2
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < vocab; i += step) {
    load_packet(logits + i, values);
    float highest = values[0];
#pragma unroll
    for (int j = 1; j < kCount; ++j) highest = fmaxf(highest, values[j]);
    if (highest > top) {
      sum *= exp_of(top - highest);
      top = highest;
    }
    add_weights(values, top, sum);
#pragma unroll
    for (int j = 0; j < kCount; ++j) total += values[j];
  }
  const float top_of_row = over_block(top, Highest{});
  const float sum_of_row = over_block(top == top_of_row ? sum : sum * exp_of(top - top_of_row), Sum{});
  return {top_of_row + logf(sum_of_row), over_block(total, Sum{})};
}

__device__ inline double loss_of(const LossRows& rows, const RowSums& sums, float at_target) {
  const double normaliser = sums.log_sum_exp, target = at_target;
  double loss = normaliser - target;
  if (rows.label_smoothing > 0) loss += rows.label_smoothing * (target - sums.total / static_cast<float>(rows.vocab));
  if (rows.z_loss > 0) loss += rows.z_loss * normaliser * normaliser;
  return loss;
}

// Writes (softmax(logits) * slope - spread - (at the target ? peak : 0)) * scale; in place if grad is logits.
template <class T, int kCount>
__device__ inline void write_gradient(const LossRows& rows, const T* logits, float log_sum_exp, float scale,
                                      int64_t target, T* grad) {
  const float slope = static_cast<float>(1 + 2 * rows.z_loss * static_cast<double>(log_sum_exp)) * scale;
  const float spread = static_cast<float>(rows.label_smoothing / static_cast<double>(rows.vocab)) * scale;
  const float peak = static_cast<float>(1 - rows.label_smoothing) * scale;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  float values[kCount];
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < rows.vocab; i += step) {
    load_packet(logits + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = exp_of(values[j] - log_sum_exp) * slope - spread;
      if (i + j == target) values[j] -= peak;
    }
    store_packet(grad + i, values);
  }
}

template <class T, int kCount>
__device__ inline void fill_row(T* grad, int64_t vocab, float value) {
  float values[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = value;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < vocab; i += step) store_packet(grad + i, values);
}

template <class T, int kCount>
__global__ void row_losses(LossRows rows, double* losses, float* normalisers) {
  const int64_t row = blockIdx.x, target = rows.targets[row];
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.vocab;
  const RowKind kind = kind_of(target, rows.vocab);
  double loss = kind == RowKind::kBad ? NAN : 0;
  RowSums sums{kind == RowKind::kBad ? NAN : 0.0f, 0.0f};
  if (kind == RowKind::kValid) {
    sums = sum_row<T, kCount>(logits, rows.vocab);
    loss = loss_of(rows, sums, widen(logits[target]));
  }
  if (threadIdx.x > 0) return;
  losses[row] = loss;
  normalisers[row] = sums.log_sum_exp;
}

template <class T, int kCount>
__global__ void row_gradients(LossRows rows, const float* normalisers, const float* scale, T* grads) {
  const int64_t row = blockIdx.x, target = rows.targets[row];
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.vocab;
  T* grad = grads + row * rows.vocab;
  const RowKind kind = kind_of(target, rows.vocab);
  if (kind == RowKind::kValid)
    write_gradient<T, kCount>(rows, logits, normalisers[row], *scale, target, grad);
  else
    fill_row<T, kCount>(grad, rows.vocab, kind == RowKind::kBad ? NAN : 0.0f);
}

// In place, if grads are the logits: the target's logit is read before the first write, because sum_row() ends with a
// barrier.
template <class T, int kCount>
__global__ void row_losses_and_gradients(LossRows rows, const float* scale, double* losses, T* grads) {
  const int64_t row = blockIdx.x, target = rows.targets[row];
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.vocab;
  T* grad = grads + row * rows.vocab;
  const RowKind kind = kind_of(target, rows.vocab);
  if (kind != RowKind::kValid) {
    const bool is_bad = kind == RowKind::kBad;
    if (threadIdx.x == 0) losses[row] = is_bad ? NAN : 0;
    fill_row<T, kCount>(grad, rows.vocab, is_bad ? NAN : 0.0f);
    return;
  }
  const float at_target = widen(logits[target]);
  const RowSums sums = sum_row<T, kCount>(logits, rows.vocab);
  if (threadIdx.x == 0) losses[row] = loss_of(rows, sums, at_target);
  write_gradient<T, kCount>(rows, logits, sums.log_sum_exp, *scale, target, grad);
}

// What the sum is divided by; called by all threads of the one block.
__device__ inline float divide_by(const int64_t* targets, int64_t rows, Divisor divisor) {
  if (divisor == Divisor::kOne) return 1.0f;
  unsigned long long valid = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) valid += targets[row] == kIgnored ? 0 : 1;
  valid = over_block(valid, Sum{});
  return valid == 0 ? 1.0f : static_cast<float>(valid);
}

__global__ void __launch_bounds__(kSumThreads)
    sum_losses(const double* losses, const int64_t* targets, int64_t rows, Divisor divisor, float* loss) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
  sum = over_block(sum, Sum{});
  const float by = divide_by(targets, rows, divisor);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(by));
}

__global__ void __launch_bounds__(kSumThreads)
    make_scale(const float* grad, const int64_t* targets, int64_t rows, Divisor divisor, float* scale) {
  const float by = divide_by(targets, rows, divisor);
  if (threadIdx.x == 0) *scale = (grad == nullptr ? 1.0f : *grad) / by;
}

// Calls launch(zero, count, blocks, threads) for the rows.
template <class Launch>
cudaError_t for_rows(const LossRows& rows, const void* grad, const Launch& launch) {
  if (rows.rows == 0) return cudaSuccess;
  return with_packets(rows.element, rows.vocab, {rows.logits, grad}, [&](auto zero, auto count) {
    const int64_t packets = (rows.vocab + decltype(count)::value - 1) / decltype(count)::value;
    launch(zero, count, static_cast<unsigned>(rows.rows), threads_for(packets, kMostThreads));
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_row_losses(const LossRows& rows, double* losses, float* normalisers, cudaStream_t stream) {
  return for_rows(rows, nullptr, [&](auto zero, auto count, unsigned blocks, unsigned threads) {
    row_losses<decltype(zero), decltype(count)::value><<<blocks, threads, 0, stream>>>(rows, losses, normalisers);
  });
}

cudaError_t launch_row_gradients(const LossRows& rows, const float* normalisers, const float* scale, void* grad,
                                 cudaStream_t stream) {
  return for_rows(rows, grad, [&](auto zero, auto count, unsigned blocks, unsigned threads) {
    using T = decltype(zero);
    row_gradients<T, decltype(count)::value>
        <<<blocks, threads, 0, stream>>>(rows, normalisers, scale, static_cast<T*>(grad));
  });
}

cudaError_t launch_row_losses_and_gradients(const LossRows& rows, const float* scale, double* losses, void* grad,
                                            cudaStream_t stream) {
  return for_rows(rows, grad, [&](auto zero, auto count, unsigned blocks, unsigned threads) {
    using T = decltype(zero);
    row_losses_and_gradients<T, decltype(count)::value>
        <<<blocks, threads, 0, stream>>>(rows, scale, losses, static_cast<T*>(grad));
  });
}

cudaError_t launch_loss_sum(const double* losses, const int64_t* targets, int64_t rows, Divisor divisor, float* loss,
                            cudaStream_t stream) {
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, targets, rows, divisor, loss);
  return cudaGetLastError();
}

cudaError_t launch_loss_scale(const float* grad, const int64_t* targets, int64_t rows, Divisor divisor, float* scale,
                              cudaStream_t stream) {
  make_scale<<<1, kSumThreads, 0, stream>>>(grad, targets, rows, divisor, scale);
  return cudaGetLastError();
}

}  // namespace fsdp::kernels::cuda
