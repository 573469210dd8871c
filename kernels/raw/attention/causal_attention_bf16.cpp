// Shape suffixes: those of causal_attention.cpp; N keys of one block; 2 before a letter: pairs along it. Rows that are
// as long as a document lie spread_stride() apart.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/raw/attention/causal_attention.h"
#include "kernels/raw/products/amx.h"
#include "kernels/raw/products/pair_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/attention/causal_attention_bf16.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/attention/causal_attention_rows-inl.h"
#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::attention::HWY_NAMESPACE {
namespace {

using simd::Float;

int64_t query_block() { return amx::is_available() ? kTiledQueries : kQueryBlock; }

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Copies a head's rows to `to` [P, W], zero padded.
void pack_rows(TokenRows<const Bf16> from, int64_t length, int64_t dim, Bf16* to) {
  const int64_t width = round_up(dim), padded = round_up(length);
  for (int64_t row = 0; row < length; ++row, to += width) {
    std::memcpy(to, from.row(row), static_cast<size_t>(dim) * sizeof(Bf16));
    std::memset(to + dim, 0, static_cast<size_t>(width - dim) * sizeof(Bf16));
  }
  std::memset(to, 0, static_cast<size_t>((padded - length) * width) * sizeof(Bf16));
}

Bf16Pair pair_at(const Bf16* from) {
  Bf16Pair pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// [P, W] -> [2W, P]: pairs along the head dim.
void pair_columns(const Bf16* from_PW, int64_t padded, int64_t width, Bf16Pair* to_WP) {
  const int64_t stride = spread_stride(padded);
  for (int64_t begin = 0; begin < padded; begin += kGroup)
    for (int64_t i = 0; i < width / 2; ++i)
      for (int64_t row = begin; row < begin + kGroup; ++row)
        to_WP[i * stride + row] = pair_at(from_PW + row * width + 2 * i);
}

// [P, W] -> [2P, W]: pairs along the tokens.
void pair_rows(const Bf16* from_PW, int64_t padded, int64_t width, Bf16Pair* to_PW) {
  for (int64_t row = 0; row < padded; row += 2, from_PW += 2 * width, to_PW += width)
    for (int64_t i = 0; i < width; ++i)
      to_PW[i] = from_PW[i].bits | static_cast<Bf16Pair>(from_PW[width + i].bits) << 16;
}

// [2P, W] -> [W, 2P]: pairs along the tokens, of each number of a head's.
void turn_pairs(const Bf16Pair* from_PW, int64_t padded, int64_t width, Bf16Pair* to_WP) {
  const int64_t stride = spread_stride(padded / 2), whole = padded / 2 / kGroup * kGroup;
  for (int64_t row = 0; row < whole; row += kGroup)
    for (int64_t i = 0; i < width; i += kGroup)
      simd::transpose(reinterpret_cast<const float*>(from_PW + row * width + i), width,
                      reinterpret_cast<float*>(to_WP + i * stride + row), stride);
  for (int64_t i = 0; i < width; ++i)
    for (int64_t row = whole; row < padded / 2; ++row) to_WP[i * stride + row] = from_PW[row * width + i];
}

PairedOperand rows_of(const Bf16* from, int64_t width) {
  return {reinterpret_cast<const Bf16Pair*>(from), width / 2, 1};
}

// What is seen of the `count` keys from `first` on.
Visible seen_of_block(int64_t token, int64_t first, int64_t count, int64_t window) {
  const Visible all = visible_to(token, {first, count}, window);
  return {std::min(all.begin, count), std::clamp<int64_t>(all.end, 0, count)};
}

// Of one query, over the keys so far.
struct Running {
  float top = kNothing;  // highest score
  float total = 0;       // sum of e^(score - top)
};

// Scores of one query over a block of `keys` to weights e^(score * scale - top), 0 where it sees nothing. Returns what
// sums with earlier weights have to be multiplied with.
HWY_INLINE float weigh_row(float* scores, Visible seen, int64_t keys, float scale, Running* running, Bf16* weights) {
  if (seen.begin >= seen.end) {
    std::memset(weights, 0, static_cast<size_t>(keys) * sizeof(Bf16));
    return 1;
  }
  const int64_t start = seen.begin / kGroup * kGroup, stop = round_up(seen.end);
  std::fill(scores + start, scores + seen.begin, kNothing);
  std::fill(scores + seen.end, scores + stop, kNothing);
  Float highest = simd::load(scores + start);
  for (int64_t i = start + kGroup; i < stop; i += kGroup) highest = simd::max(highest, simd::load(scores + i));
  const float top = std::max(running->top, simd::max(highest) * scale);
  Float total = simd::zero();
  for (int64_t i = start; i < stop; i += kGroup) {
    const Float weight = simd::exp(simd::load(scores + i) * scale - top);  // unseen: 1e-38, nothing beside the largest
    simd::store(weights + i, weight);
    total = total + weight;
  }
  std::memset(weights, 0, static_cast<size_t>(seen.begin) * sizeof(Bf16));
  std::memset(weights + seen.end, 0, static_cast<size_t>(keys - seen.end) * sizeof(Bf16));
  const float factor = std::exp(running->top - top);
  *running = {top, running->total * factor + simd::sum(total)};
  return factor;
}

HWY_INLINE void multiply_row(float* row, int64_t width, float factor) {
  for (int64_t i = 0; i < width; i += kGroup) simd::store(row + i, simd::load(row + i) * factor);
}

struct ForwardBuffers {
  Bf16 *rows_PW, *q_PW;  // rows of k or v, then of q
  Bf16Pair *k_2WP, *v_2PW;
  float *scores_QN, *y_QW;
  Bf16* weights_QN;

  ForwardBuffers(Scratch& memory, int64_t padded, int64_t width)
      : rows_PW(memory.take<Bf16>(padded * width)),
        q_PW(rows_PW),
        k_2WP(memory.take<Bf16Pair>(spread_stride(padded) * width / 2)),
        v_2PW(memory.take<Bf16Pair>(padded * width / 2)),
        scores_QN(memory.take<float>(kMostQueries * kKeyBlock)),
        y_QW(memory.take<float>(kMostQueries * width)),
        weights_QN(memory.take<Bf16>(kMostQueries * kKeyBlock)) {}
};

// Queries begin, begin + 1, ... to y_QW, not yet divided by the sums of their weights.
void forward_block(const ForwardBuffers& b, int64_t begin, int64_t queries, int64_t padded, const Sizes& sizes,
                   Running* running) {
  const int64_t width = sizes.width();
  const Band band = band_of(begin, queries, sizes.window);
  std::fill_n(b.y_QW, queries * width, 0.0f);
  for (int64_t first = band.first; first < band.first + band.count; first += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, band.first + band.count - first);
    pair_gemm(queries, keys, width / 2, rows_of(b.q_PW + begin * width, width), b.k_2WP + first, spread_stride(padded),
              b.scores_QN, kKeyBlock, false);
    for (int64_t i = 0; i < queries; ++i) {
      const float factor = weigh_row(b.scores_QN + i * kKeyBlock, seen_of_block(begin + i, first, keys, sizes.window),
                                     keys, sizes.scale, &running[i], b.weights_QN + i * kKeyBlock);
      if (factor != 1) multiply_row(b.y_QW + i * width, width, factor);
    }
    pair_gemm(queries, width, keys / 2, rows_of(b.weights_QN, kKeyBlock), b.v_2PW + first / 2 * width, width, b.y_QW,
              width, true);
  }
}

// Two rows of scores, of queries i and i + 1, to the weights of the softmax p, and with those of grad_p to the
// gradients of the scores, p * (grad_p - delta).
struct GradientRows {
  const float *scores, *grad_p;  // kKeyBlock to the second row
  Visible seen[2];
  float log_sum_exp[2], delta[2];
  Bf16Pair *p, *grad_pairs;  // pairs of the two rows
  Bf16* grad_rows;           // kKeyBlock to the second row
};

HWY_INLINE void differentiate_rows(const GradientRows& rows, int64_t start, int64_t stop, float scale) {
  for (int64_t i = start; i < stop; i += kGroup) {
    Float p[2], gradient[2];
#pragma GCC unroll 2
    for (int row = 0; row < 2; ++row) {
      const int64_t at = row * kKeyBlock + i;
      const Float weight = simd::exp(simd::load(rows.scores + at) * scale - rows.log_sum_exp[row]);
      const Float change = weight * (simd::load(rows.grad_p + at) - rows.delta[row]);
      p[row] = simd::round_to_bf16(weight);
      gradient[row] = simd::round_to_bf16(change);
      simd::store_upper_halves(rows.grad_rows + at, gradient[row]);
    }
    simd::store(reinterpret_cast<float*>(rows.p + i), simd::join_upper_halves(p[0], p[1]));
    simd::store(reinterpret_cast<float*>(rows.grad_pairs + i), simd::join_upper_halves(gradient[0], gradient[1]));
  }
}

// 0 for keys begin .. end - 1 of one of the rows.
void clear(const GradientRows& rows, int row, int64_t begin, int64_t end) {
  const Bf16Pair other = row == 0 ? 0xFFFF0000u : 0x0000FFFFu;
  for (int64_t i = begin; i < end; ++i) {
    rows.p[i] &= other;
    rows.grad_pairs[i] &= other;
    rows.grad_rows[row * kKeyBlock + i] = Bf16{0};
  }
}

void fill_gradient_rows(const GradientRows& rows, int64_t keys, float scale) {
  int64_t start = keys, stop = 0;
  for (const Visible& seen : rows.seen) {
    if (seen.begin >= seen.end) continue;
    start = std::min(start, seen.begin / kGroup * kGroup);
    stop = std::max(stop, round_up(seen.end));
  }
  start = std::min(start, stop);
  differentiate_rows(rows, start, stop, scale);
  for (int row = 0; row < 2; ++row) {
    const int64_t end = std::max(rows.seen[row].begin, rows.seen[row].end);
    clear(rows, row, 0, std::min(rows.seen[row].begin, keys));
    clear(rows, row, end, keys);
  }
}

struct BackwardBuffers {
  Bf16Pair *k_2WP, *v_2WP, *k_2PW;  // of the key head
  float *grad_k_WP, *grad_v_WP;
  Bf16 *rows_PW, *q_PW, *grad_y_PW;                    // rows_PW: of k, v or y
  Bf16Pair *pairs_2PW, *q_W2P, *grad_y_W2P;            // of the query head; pairs_2PW: of q or grad_y
  float *delta_P, *grad_q_QW, *scores_QN, *grad_p_QN;  // of the block
  Bf16Pair *p_2QN, *grad_2QN;
  Bf16* grad_QN;

  BackwardBuffers(Scratch& memory, int64_t padded, int64_t width) {
    for (Bf16Pair** piece : {&k_2WP, &v_2WP}) *piece = memory.take<Bf16Pair>(spread_stride(padded) * width / 2);
    for (Bf16Pair** piece : {&k_2PW, &pairs_2PW}) *piece = memory.take<Bf16Pair>(padded * width / 2);
    for (Bf16Pair** piece : {&q_W2P, &grad_y_W2P}) *piece = memory.take<Bf16Pair>(spread_stride(padded / 2) * width);
    for (float** piece : {&grad_k_WP, &grad_v_WP}) *piece = memory.take<float>(spread_stride(padded) * width);
    for (Bf16** piece : {&rows_PW, &q_PW, &grad_y_PW}) *piece = memory.take<Bf16>(padded * width);
    delta_P = memory.take<float>(padded);
    grad_q_QW = memory.take<float>(kMostQueries * width);
    for (float** piece : {&scores_QN, &grad_p_QN}) *piece = memory.take<float>(kMostQueries * kKeyBlock);
    for (Bf16Pair** piece : {&p_2QN, &grad_2QN}) *piece = memory.take<Bf16Pair>(kMostQueries * kKeyBlock / 2);
    grad_QN = memory.take<Bf16>(kMostQueries * kKeyBlock);
  }
};

// `log_sum_exp` is that of the document's first token and of the query head.
void weigh_and_differentiate(const BackwardBuffers& b, int64_t begin, int64_t first, int64_t keys, int64_t length,
                             const Sizes& sizes, const float* log_sum_exp) {
  const int64_t queries = std::min(query_block(), round_up(length) - begin);
  for (int64_t i = 0; i < queries; i += 2) {
    GradientRows rows{
        b.scores_QN + i * kKeyBlock,    b.grad_p_QN + i * kKeyBlock, {}, {}, {}, b.p_2QN + i / 2 * kKeyBlock,
        b.grad_2QN + i / 2 * kKeyBlock, b.grad_QN + i * kKeyBlock};
    for (int row = 0; row < 2; ++row) {
      const int64_t token = begin + i + row;
      if (token >= length) continue;  // padding takes no part
      rows.seen[row] = seen_of_block(token, first, keys, sizes.window);
      rows.log_sum_exp[row] = log_sum_exp[token * sizes.heads];
      rows.delta[row] = b.delta_P[token];
    }
    fill_gradient_rows(rows, keys, sizes.scale);
  }
}

void backward_block(const BackwardBuffers& b, int64_t begin, const Sizes& sizes, int64_t length,
                    const float* log_sum_exp) {
  const int64_t padded = round_up(length), width = sizes.width(), queries = std::min(query_block(), padded - begin);
  const Band band = band_of(begin, queries, sizes.window);
  const int64_t stride = spread_stride(padded), turned_stride = spread_stride(padded / 2);
  const PairedOperand q_W2Q{b.q_W2P + begin / 2, turned_stride, 1},
      grad_y_W2Q{b.grad_y_W2P + begin / 2, turned_stride, 1};
  for (int64_t first = band.first; first < band.first + band.count; first += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, band.first + band.count - first);
    pair_gemm(queries, keys, width / 2, rows_of(b.q_PW + begin * width, width), b.k_2WP + first, stride, b.scores_QN,
              kKeyBlock, false);
    pair_gemm(queries, keys, width / 2, rows_of(b.grad_y_PW + begin * width, width), b.v_2WP + first, stride,
              b.grad_p_QN, kKeyBlock, false);
    weigh_and_differentiate(b, begin, first, keys, length, sizes, log_sum_exp);
    pair_gemm(queries, width, keys / 2, rows_of(b.grad_QN, kKeyBlock), b.k_2PW + first / 2 * width, width, b.grad_q_QW,
              width, first > band.first);
    pair_gemm(width, keys, queries / 2, q_W2Q, b.grad_2QN, kKeyBlock, b.grad_k_WP + first, stride, true);
    pair_gemm(width, keys, queries / 2, grad_y_W2Q, b.p_2QN, kKeyBlock, b.grad_v_WP + first, stride, true);
  }
}

// fp32 [W, P] to a head's rows, times `scale`.
void unpack_turned(const float* from_WP, int64_t length, int64_t dim, float scale, float* rows_GW, TokenRows<Bf16> to) {
  const int64_t stride = spread_stride(round_up(length)), width = round_up(dim);
  for (int64_t token = 0; token < length; token += kGroup) {
    for (int64_t i = 0; i < width; i += kGroup)
      simd::transpose(from_WP + i * stride + token, stride, rows_GW + i, width);
    unpack_rows(rows_GW, std::min(kGroup, length - token), dim, scale, to.from(token, 0));
  }
}

// delta of each token: the dot product of its rows of y and grad_y.
HWY_INLINE void dot_rows(const Bf16* a_PW, const Bf16* b_PW, int64_t padded, int64_t width, float* to_P) {
  for (int64_t row = 0; row < padded; ++row, a_PW += width, b_PW += width) {
    Float total = simd::zero();
    for (int64_t i = 0; i < width; i += kGroup)
      total = simd::mul_add(simd::load(a_PW + i), simd::load(b_PW + i), total);
    to_P[row] = simd::sum(total);
  }
}

void paired_forward_of(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length, block = query_block();
  const ForwardBuffers b(memory, padded, width);
  pack_rows(tensors.k.from(first, task.key_head * dim), length, dim, b.rows_PW);
  pair_columns(b.rows_PW, padded, width, b.k_2WP);
  pack_rows(tensors.v.from(first, task.key_head * dim), length, dim, b.rows_PW);
  pair_rows(b.rows_PW, padded, width, b.v_2PW);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.q.from(first, head * dim), length, dim, b.q_PW);
    for (int64_t begin = 0; begin < length; begin += block) {
      const int64_t queries = std::min(block, padded - begin), used = std::min(queries, length - begin);
      Running running[kMostQueries];
      forward_block(b, begin, queries, padded, sizes, running);
      for (int64_t i = 0; i < used; ++i) {
        multiply_row(b.y_QW + i * width, width, 1.0f / running[i].total);
        tensors.log_sum_exp[(first + begin + i) * sizes.heads + head] = running[i].top + std::log(running[i].total);
      }
      unpack_rows(b.y_QW, used, dim, 1.0f, tensors.y.from(first + begin, head * dim));
    }
  }
}

void paired_backward_of(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length, key_column = task.key_head * dim;
  const int64_t block = query_block();
  const BackwardBuffers b(memory, padded, width);
  pack_rows(tensors.v.from(first, key_column), length, dim, b.rows_PW);
  pair_columns(b.rows_PW, padded, width, b.v_2WP);
  pack_rows(tensors.k.from(first, key_column), length, dim, b.rows_PW);
  pair_columns(b.rows_PW, padded, width, b.k_2WP);
  pair_rows(b.rows_PW, padded, width, b.k_2PW);
  std::fill_n(b.grad_k_WP, spread_stride(padded) * width, 0.0f);
  std::fill_n(b.grad_v_WP, spread_stride(padded) * width, 0.0f);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.y.from(first, head * dim), length, dim, b.rows_PW);
    pack_rows(tensors.grad_y.from(first, head * dim), length, dim, b.grad_y_PW);
    dot_rows(b.rows_PW, b.grad_y_PW, padded, width, b.delta_P);
    pair_rows(b.grad_y_PW, padded, width, b.pairs_2PW);
    turn_pairs(b.pairs_2PW, padded, width, b.grad_y_W2P);
    pack_rows(tensors.q.from(first, head * dim), length, dim, b.q_PW);
    pair_rows(b.q_PW, padded, width, b.pairs_2PW);
    turn_pairs(b.pairs_2PW, padded, width, b.q_W2P);
    for (int64_t begin = 0; begin < length; begin += block) {
      backward_block(b, begin, sizes, length, tensors.log_sum_exp + first * sizes.heads + head);
      unpack_rows(b.grad_q_QW, std::min(block, length - begin), dim, sizes.scale,
                  tensors.grad_q.from(first + begin, head * dim));
    }
  }
  unpack_turned(b.grad_k_WP, length, dim, sizes.scale, b.grad_q_QW, tensors.grad_k.from(first, key_column));
  unpack_turned(b.grad_v_WP, length, dim, 1.0f, b.grad_q_QW, tensors.grad_v.from(first, key_column));
}

}  // namespace
}  // namespace fsdp::kernels::raw::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw::attention {

HWY_EXPORT(paired_forward_of);
HWY_EXPORT(paired_backward_of);

int64_t paired_forward_bytes(const Sizes& sizes) {
  const int64_t padded = sizes.padded(), width = sizes.width();
  return (padded * 4 + spread_stride(padded) * 2) * width + kMostQueries * (kKeyBlock * 6 + width * 4);
}

int64_t paired_backward_bytes(const Sizes& sizes) {
  const int64_t padded = sizes.padded(), width = sizes.width();
  const int64_t spread = spread_stride(padded) * 12 + spread_stride(padded / 2) * 8;
  return (padded * 10 + spread) * width + padded * 4 + kMostQueries * (kKeyBlock * 14 + width * 4);
}

void paired_forward(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(paired_forward_of)(task, sizes, tensors, memory);
}
void paired_backward(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory) {
  HWY_DYNAMIC_DISPATCH(paired_backward_of)(task, sizes, tensors, memory);
}

}  // namespace fsdp::kernels::raw::attention
#endif
