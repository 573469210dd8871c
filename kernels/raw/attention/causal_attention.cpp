// Shape suffixes: P tokens of one document, rounded up to a multiple of 16; W head dim, rounded up likewise; both zero
// padded. Q queries of one block.
#include "kernels/raw/attention/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/raw/products/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/attention/causal_attention.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/attention/causal_attention_rows-inl.h"
#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::attention::HWY_NAMESPACE {
namespace {

using simd::Float;

// Copies a head's rows to `to` [P, W] times `scale`, zero padded.
template <class T>
HWY_INLINE void pack_rows(TokenRows<const T> from, int64_t length, int64_t dim, float scale, float* to) {
  const int64_t width = round_up(dim), whole = dim / kGroup * kGroup;
  for (int64_t token = 0; token < length; ++token, to += width) {
    const T* row = from.row(token);
    for (int64_t i = 0; i < whole; i += kGroup) simd::store(to + i, simd::load(row + i) * scale);
    if (whole < dim) simd::store(to + whole, simd::load_first(row + whole, dim - whole) * scale);
  }
  std::fill_n(to, (round_up(length) - length) * width, 0.0f);
}

// [P, W] -> [W, P]
HWY_INLINE void transpose(const float* from_PW, int64_t padded, int64_t width, float* to_WP) {
  const int64_t stride = spread_stride(padded);
  for (int64_t row = 0; row < padded; row += kGroup)
    for (int64_t i = 0; i < width; i += kGroup)
      simd::transpose(from_PW + row * width + i, width, to_WP + i * stride + row, stride);
}

// Scores of one query over `keys` (a multiple of 16) to probabilities, 0 where it sees nothing; returns the
// log-sum-exp.
HWY_INLINE float softmax_row(float* scores, Visible visible, int64_t keys) {
  const int64_t start = visible.begin / kGroup * kGroup, stop = round_up(visible.end);
  // exp() saturates at 1e-38: nothing beside the largest term's 1.
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  std::fill(scores + start, scores + visible.begin, kUnseen);
  std::fill(scores + visible.end, scores + stop, kUnseen);
  Float highest = simd::load(scores + start);
  for (int64_t i = start + kGroup; i < stop; i += kGroup) highest = simd::max(highest, simd::load(scores + i));
  const float top = simd::max(highest);
  Float total = simd::zero();
  for (int64_t i = start; i < stop; i += kGroup) {
    const Float p = simd::exp(simd::load(scores + i) - top);
    simd::store(scores + i, p);
    total = total + p;
  }
  const float sum = simd::sum(total), inverse = 1.0f / sum;
  for (int64_t i = start; i < stop; i += kGroup) simd::store(scores + i, simd::load(scores + i) * inverse);
  std::fill(scores, scores + visible.begin, 0.0f);
  std::fill(scores + visible.end, scores + keys, 0.0f);
  return top + std::log(sum);
}

// In place: scores -> probabilities p, and grad_p -> grad of the scores = p * (grad_p - delta).
HWY_INLINE void softmax_gradient_row(float* scores, float* grad_p, float log_sum_exp, float delta, Visible visible,
                                     int64_t keys) {
  const int64_t start = visible.begin / kGroup * kGroup, stop = round_up(visible.end);
  for (int64_t i = start; i < stop; i += kGroup) {
    const Float p = simd::exp(simd::load(scores + i) - log_sum_exp);
    simd::store(scores + i, p);
    simd::store(grad_p + i, p * (simd::load(grad_p + i) - delta));
  }
  for (float* row : {scores, grad_p}) {
    std::fill(row, row + visible.begin, 0.0f);
    std::fill(row + visible.end, row + keys, 0.0f);
  }
}

// Of rows [P, W] of a and b.
HWY_INLINE void dot_rows(const float* a_PW, const float* b_PW, int64_t padded, int64_t width, float* to_P) {
  for (int64_t row = 0; row < padded; ++row, a_PW += width, b_PW += width) {
    Float total = simd::zero();
    for (int64_t i = 0; i < width; i += kGroup)
      total = simd::mul_add(simd::load(a_PW + i), simd::load(b_PW + i), total);
    to_P[row] = simd::sum(total);
  }
}

struct ForwardBuffers {
  float *k_WP, *v_PW;     // of the key head
  float *rows_PW, *y_QW;  // of k, then of the query head
  float* scores_QP;       // of the block

  ForwardBuffers(Scratch& memory, int64_t padded, int64_t width) {
    k_WP = memory.take<float>(spread_stride(padded) * width);
    for (float** piece : {&v_PW, &rows_PW}) *piece = memory.take<float>(padded * width);
    y_QW = memory.take<float>(kQueryBlock * width);
    scores_QP = memory.take<float>(kQueryBlock * spread_stride(padded));
  }
};

// Queries begin, begin + 1, ... to y_QW. `log_sum_exp` is that of the document's first token and of the query head.
HWY_INLINE void forward_block(const ForwardBuffers& b, int64_t begin, const Sizes& sizes, int64_t length,
                              float* log_sum_exp) {
  const int64_t padded = round_up(length), width = sizes.width(), queries = std::min(kQueryBlock, padded - begin);
  const int64_t stride = spread_stride(padded);
  const Band band = band_of(begin, queries, sizes.window);
  small_gemm(queries, band.count, width, {b.rows_PW + begin * width, width, 1}, b.k_WP + band.first, stride,
             b.scores_QP, stride, false);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t token = begin + i;
    const float of_row = softmax_row(b.scores_QP + i * stride, visible_to(token, band, sizes.window), band.count);
    if (token < length) log_sum_exp[token * sizes.heads] = of_row;
  }
  small_gemm(queries, width, band.count, {b.scores_QP, stride, 1}, b.v_PW + band.first * width, width, b.y_QW, width,
             false);
}

template <class T>
HWY_INLINE void forward_of(const Task& task, const Sizes& sizes, const ForwardTensors<T>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length, key_column = task.key_head * dim;
  const ForwardBuffers b(memory, padded, width);
  pack_rows(tensors.k.from(first, key_column), length, dim, 1, b.rows_PW);
  transpose(b.rows_PW, padded, width, b.k_WP);
  pack_rows(tensors.v.from(first, key_column), length, dim, 1, b.v_PW);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.q.from(first, head * dim), length, dim, sizes.scale, b.rows_PW);
    for (int64_t begin = 0; begin < length; begin += kQueryBlock) {
      forward_block(b, begin, sizes, length, tensors.log_sum_exp + first * sizes.heads + head);
      unpack_rows(b.y_QW, std::min(kQueryBlock, length - begin), dim, 1.0f, tensors.y.from(first + begin, head * dim));
    }
  }
}

struct BackwardBuffers {
  float *k_PW, *k_WP, *v_WP, *grad_k_PW, *grad_v_PW;  // of the key head
  float *q_PW, *grad_y_PW, *delta_P;                  // of the query head; q_PW holds v and y before
  float *scores_QP, *grad_QP, *grad_q_QW;             // of the block

  BackwardBuffers(Scratch& memory, int64_t padded, int64_t width) {
    for (float** piece : {&k_PW, &grad_k_PW, &grad_v_PW, &q_PW, &grad_y_PW})
      *piece = memory.take<float>(padded * width);
    for (float** piece : {&k_WP, &v_WP}) *piece = memory.take<float>(spread_stride(padded) * width);
    delta_P = memory.take<float>(padded);
    for (float** piece : {&scores_QP, &grad_QP}) *piece = memory.take<float>(kQueryBlock * spread_stride(padded));
    grad_q_QW = memory.take<float>(kQueryBlock * width);
  }
};

// `log_sum_exp` is that of the document's first token and of the query head.
HWY_INLINE void backward_block(const BackwardBuffers& b, int64_t begin, const Sizes& sizes, int64_t length,
                               const float* log_sum_exp) {
  const int64_t padded = round_up(length), width = sizes.width(), queries = std::min(kQueryBlock, padded - begin);
  const int64_t stride = spread_stride(padded);
  const Band band = band_of(begin, queries, sizes.window);
  const float *q_QW = b.q_PW + begin * width, *grad_y_QW = b.grad_y_PW + begin * width;
  small_gemm(queries, band.count, width, {q_QW, width, 1}, b.k_WP + band.first, stride, b.scores_QP, stride, false);
  small_gemm(queries, band.count, width, {grad_y_QW, width, 1}, b.v_WP + band.first, stride, b.grad_QP, stride, false);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t token = begin + i;
    const bool is_padding = token >= length;  // takes no part
    softmax_gradient_row(b.scores_QP + i * stride, b.grad_QP + i * stride,
                         is_padding ? 0 : log_sum_exp[token * sizes.heads], b.delta_P[token],
                         is_padding ? Visible{0, 0} : visible_to(token, band, sizes.window), band.count);
  }
  const int64_t first = band.first * width;
  small_gemm(queries, width, band.count, {b.grad_QP, stride, 1}, b.k_PW + first, width, b.grad_q_QW, width, false);
  small_gemm(band.count, width, queries, {b.grad_QP, 1, stride}, q_QW, width, b.grad_k_PW + first, width, true);
  small_gemm(band.count, width, queries, {b.scores_QP, 1, stride}, grad_y_QW, width, b.grad_v_PW + first, width, true);
}

template <class T>
HWY_INLINE void backward_of(const Task& task, const Sizes& sizes, const BackwardTensors<T>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length, key_column = task.key_head * dim;
  const BackwardBuffers b(memory, padded, width);
  pack_rows(tensors.v.from(first, key_column), length, dim, 1, b.q_PW);
  transpose(b.q_PW, padded, width, b.v_WP);
  pack_rows(tensors.k.from(first, key_column), length, dim, 1, b.k_PW);
  transpose(b.k_PW, padded, width, b.k_WP);
  std::fill_n(b.grad_k_PW, padded * width, 0.0f);
  std::fill_n(b.grad_v_PW, padded * width, 0.0f);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.y.from(first, head * dim), length, dim, 1, b.q_PW);
    pack_rows(tensors.grad_y.from(first, head * dim), length, dim, 1, b.grad_y_PW);
    dot_rows(b.q_PW, b.grad_y_PW, padded, width, b.delta_P);
    pack_rows(tensors.q.from(first, head * dim), length, dim, sizes.scale, b.q_PW);
    for (int64_t begin = 0; begin < length; begin += kQueryBlock) {
      backward_block(b, begin, sizes, length, tensors.log_sum_exp + first * sizes.heads + head);
      unpack_rows(b.grad_q_QW, std::min(kQueryBlock, length - begin), dim, sizes.scale,
                  tensors.grad_q.from(first + begin, head * dim));
    }
  }
  unpack_rows(b.grad_k_PW, length, dim, 1.0f, tensors.grad_k.from(first, key_column));
  unpack_rows(b.grad_v_PW, length, dim, 1.0f, tensors.grad_v.from(first, key_column));
}

void forward_f32(const Task& task, const Sizes& sizes, const ForwardTensors<float>& tensors, Scratch memory) {
  forward_of(task, sizes, tensors, memory);
}
void forward_bf16(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory) {
  forward_of(task, sizes, tensors, memory);
}
void backward_f32(const Task& task, const Sizes& sizes, const BackwardTensors<float>& tensors, Scratch memory) {
  backward_of(task, sizes, tensors, memory);
}
void backward_bf16(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory) {
  backward_of(task, sizes, tensors, memory);
}

}  // namespace
}  // namespace fsdp::kernels::raw::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw::attention {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

int64_t forward_bytes(const Sizes& sizes) {
  const int64_t padded = sizes.padded(), stride = spread_stride(padded), width = sizes.width();
  const int64_t numel = padded * 2 * width + stride * (width + kQueryBlock) + kQueryBlock * width;
  return numel * static_cast<int64_t>(sizeof(float));
}

int64_t backward_bytes(const Sizes& sizes) {
  const int64_t padded = sizes.padded(), stride = spread_stride(padded), width = sizes.width();
  const int64_t numel = padded * (5 * width + 1) + stride * 2 * (width + kQueryBlock) + kQueryBlock * width;
  return numel * static_cast<int64_t>(sizeof(float));
}

void forward(const Task& task, const Sizes& sizes, const ForwardTensors<float>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(task, sizes, tensors, memory);
}
void forward(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(task, sizes, tensors, memory);
}
void backward(const Task& task, const Sizes& sizes, const BackwardTensors<float>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(task, sizes, tensors, memory);
}
void backward(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(task, sizes, tensors, memory);
}

}  // namespace fsdp::kernels::raw::attention
#endif
