// Shape suffixes: P tokens of one document, rounded up to a multiple of 16; W head dim, rounded up likewise; both zero
// padded. Q queries of one block.
#include "kernels/causal_attention.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/causal_attention_bf16.h"
#include "kernels/causal_attention_parts.h"
#include "kernels/dense_rows.h"
#include "kernels/dispatch.h"
#include "kernels/input_checks.h"
#include "kernels/pair_gemm.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"
#include "kernels/small_gemm.h"

namespace fsdp::kernels {
namespace {

using namespace attention;
using simd::Float;
using simd::kLanes;

// Copies a head's rows to `to` [P, W] times `scale`, zero padded.
template <class T>
void pack_rows(TokenRows<const T> from, int64_t length, int64_t dim, float scale, float* to) {
  const int64_t width = round_up(dim), padded = round_up(length);
  for (int64_t row = 0; row < padded; ++row, to += width) {
    if (row >= length) {
      std::fill_n(to, width, 0.0f);
      continue;
    }
    for (int64_t i = 0; i < dim; ++i) to[i] = static_cast<float>(from.row(row)[i]) * scale;
    std::fill(to + dim, to + width, 0.0f);
  }
}

// [P, W] -> [W, P]
void transpose(const float* from_PW, int64_t padded, int64_t width, float* to_WP) {
  for (int64_t begin = 0; begin < padded; begin += kLanes)
    for (int64_t i = 0; i < width; ++i)
      for (int64_t row = begin; row < begin + kLanes; ++row) to_WP[i * padded + row] = from_PW[row * width + i];
}

// Scores of one query over `keys` (a multiple of 16) to probabilities, 0 where it sees nothing; returns the
// log-sum-exp.
FSDP_SIMD_CLONES float softmax_row(float* scores, Visible visible, int64_t keys) {
  const int64_t start = visible.begin / kLanes * kLanes, stop = (visible.end + kLanes - 1) / kLanes * kLanes;
  // exp() saturates at 1e-38: nothing beside the largest term's 1.
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  std::fill(scores + start, scores + visible.begin, kUnseen);
  std::fill(scores + visible.end, scores + stop, kUnseen);
  Float highest = simd::load(scores + start);
  for (int64_t i = start + kLanes; i < stop; i += kLanes) highest = simd::max(highest, simd::load(scores + i));
  const float top = simd::max(highest);
  Float total = {};
  for (int64_t i = start; i < stop; i += kLanes) {
    const Float p = simd::exp(simd::load(scores + i) - top);
    simd::store(scores + i, p);
    total += p;
  }
  const float sum = simd::sum(total), inverse = 1.0f / sum;
  for (int64_t i = start; i < stop; i += kLanes) simd::store(scores + i, simd::load(scores + i) * inverse);
  std::fill(scores, scores + visible.begin, 0.0f);
  std::fill(scores + visible.end, scores + keys, 0.0f);
  return top + std::log(sum);
}

// In place: scores -> probabilities p, and grad_p -> grad of the scores = p * (grad_p - delta).
FSDP_SIMD_CLONES void softmax_gradient_row(float* scores, float* grad_p, float log_sum_exp, float delta,
                                           Visible visible, int64_t keys) {
  const int64_t start = visible.begin / kLanes * kLanes, stop = (visible.end + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = start; i < stop; i += kLanes) {
    const Float p = simd::exp(simd::load(scores + i) - log_sum_exp);
    simd::store(scores + i, p);
    simd::store(grad_p + i, p * (simd::load(grad_p + i) - delta));
  }
  for (float* row : {scores, grad_p}) {
    std::fill(row, row + visible.begin, 0.0f);
    std::fill(row + visible.end, row + keys, 0.0f);
  }
}

float dot(const float* a, const float* b, int64_t count) {
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += a[i] * b[i];
  return total;
}

template <class T>
void forward_task(const Task& task, const Sizes& sizes, const ForwardTensors<T>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length;
  float *k_PW = memory.take<float>(padded * width), *k_WP = memory.take<float>(padded * width),
        *v_PW = memory.take<float>(padded * width);
  float *q_PW = memory.take<float>(padded * width), *y_PW = memory.take<float>(padded * width);
  float* scores_QP = memory.take<float>(kQueryBlock * padded);
  pack_rows(tensors.k.from(first, task.key_head * dim), length, dim, 1, k_PW);
  pack_rows(tensors.v.from(first, task.key_head * dim), length, dim, 1, v_PW);
  transpose(k_PW, padded, width, k_WP);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.q.from(first, head * dim), length, dim, sizes.scale, q_PW);
    for (int64_t begin = 0; begin < length; begin += kQueryBlock) {
      const int64_t queries = std::min(kQueryBlock, padded - begin);
      const Band band = band_of(begin, queries, sizes.window);
      small_gemm(queries, band.count, width, {q_PW + begin * width, width, 1}, k_WP + band.first, padded, scores_QP,
                 padded, false);
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t token = begin + i;
        const float log_sum_exp =
            softmax_row(scores_QP + i * padded, visible_to(token, band, sizes.window), band.count);
        if (token < length) tensors.log_sum_exp[(first + token) * sizes.heads + head] = log_sum_exp;
      }
      small_gemm(queries, width, band.count, {scores_QP, padded, 1}, v_PW + band.first * width, width,
                 y_PW + begin * width, width, false);
    }
    unpack_rows(y_PW, length, dim, 1.0f, tensors.y.from(first, head * dim));
  }
}

// Scratch of the backward.
struct BackwardBuffers {
  float *k_PW, *k_WP, *v_WP, *grad_k_PW, *grad_v_PW;  // of the key head
  float *q_PW, *grad_y_PW, *grad_q_PW, *delta_P;      // of the query head
  float *scores_QP, *grad_QP;                         // of the block

  BackwardBuffers(Scratch& memory, int64_t padded, int64_t width) {
    for (float** piece : {&k_PW, &k_WP, &v_WP, &grad_k_PW, &grad_v_PW, &q_PW, &grad_y_PW, &grad_q_PW})
      *piece = memory.take<float>(padded * width);
    delta_P = memory.take<float>(padded);
    scores_QP = memory.take<float>(kQueryBlock * padded);
    grad_QP = memory.take<float>(kQueryBlock * padded);
  }
};

// `log_sum_exp` is that of the document's first token and of the query head.
void backward_block(const BackwardBuffers& b, int64_t begin, const Sizes& sizes, int64_t length,
                    const float* log_sum_exp) {
  const int64_t padded = round_up(length), width = sizes.width(), queries = std::min(kQueryBlock, padded - begin);
  const Band band = band_of(begin, queries, sizes.window);
  const float *q_QW = b.q_PW + begin * width, *grad_y_QW = b.grad_y_PW + begin * width;
  small_gemm(queries, band.count, width, {q_QW, width, 1}, b.k_WP + band.first, padded, b.scores_QP, padded, false);
  small_gemm(queries, band.count, width, {grad_y_QW, width, 1}, b.v_WP + band.first, padded, b.grad_QP, padded, false);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t token = begin + i;
    const bool is_padding = token >= length;  // takes no part
    softmax_gradient_row(b.scores_QP + i * padded, b.grad_QP + i * padded,
                         is_padding ? 0 : log_sum_exp[token * sizes.heads], b.delta_P[token],
                         is_padding ? Visible{0, 0} : visible_to(token, band, sizes.window), band.count);
  }
  const int64_t first = band.first * width;
  small_gemm(queries, width, band.count, {b.grad_QP, padded, 1}, b.k_PW + first, width, b.grad_q_PW + begin * width,
             width, false);
  small_gemm(band.count, width, queries, {b.grad_QP, 1, padded}, q_QW, width, b.grad_k_PW + first, width, true);
  small_gemm(band.count, width, queries, {b.scores_QP, 1, padded}, grad_y_QW, width, b.grad_v_PW + first, width, true);
}

template <class T>
void backward_task(const Task& task, const Sizes& sizes, const BackwardTensors<T>& tensors, Scratch memory) {
  const int64_t padded = round_up(task.length), width = sizes.width(), dim = sizes.dim;
  const int64_t first = task.first_token, length = task.length, key_column = task.key_head * dim;
  const BackwardBuffers b(memory, padded, width);
  pack_rows(tensors.v.from(first, key_column), length, dim, 1, b.k_PW);
  transpose(b.k_PW, padded, width, b.v_WP);
  pack_rows(tensors.k.from(first, key_column), length, dim, 1, b.k_PW);
  transpose(b.k_PW, padded, width, b.k_WP);
  std::fill_n(b.grad_k_PW, padded * width, 0.0f);
  std::fill_n(b.grad_v_PW, padded * width, 0.0f);
  for (int64_t head = task.key_head * sizes.group(); head < (task.key_head + 1) * sizes.group(); ++head) {
    pack_rows(tensors.y.from(first, head * dim), length, dim, 1, b.q_PW);
    pack_rows(tensors.grad_y.from(first, head * dim), length, dim, 1, b.grad_y_PW);
    for (int64_t i = 0; i < padded; ++i) b.delta_P[i] = dot(b.q_PW + i * width, b.grad_y_PW + i * width, width);
    pack_rows(tensors.q.from(first, head * dim), length, dim, sizes.scale, b.q_PW);
    for (int64_t begin = 0; begin < length; begin += kQueryBlock)
      backward_block(b, begin, sizes, length, tensors.log_sum_exp + first * sizes.heads + head);
    unpack_rows(b.grad_q_PW, length, dim, sizes.scale, tensors.grad_q.from(first, head * dim));
  }
  unpack_rows(b.grad_k_PW, length, dim, 1.0f, tensors.grad_k.from(first, key_column));
  unpack_rows(b.grad_v_PW, length, dim, 1.0f, tensors.grad_v.from(first, key_column));
}

// Runs `body(task, scratch)` for all tasks, each thread with `bytes` of scratch memory.
template <class Body>
void for_each(const std::vector<Task>& tasks, int64_t bytes, const Body& body) {
  parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    const c10::DataPtr memory = c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes));
    for (int64_t i = begin; i < end; ++i) body(tasks[static_cast<size_t>(i)], Scratch(memory.get()));
  });
}

std::vector<Task> make_tasks(const at::Tensor& q, int64_t key_heads, at::IntArrayRef lengths) {
  const int64_t rows = q.size(0), length = q.size(1);
  std::vector<int64_t> documents = lengths.vec();
  if (documents.empty() && length > 0) documents.assign(static_cast<size_t>(rows), length);
  std::vector<Task> tasks;
  int64_t first = 0;
  for (const int64_t count : documents) {
    for (int64_t head = 0; head < key_heads; ++head) tasks.push_back({first, count, head});
    first += count;
  }
  return tasks;
}

Sizes make_sizes(const at::Tensor& q, const at::Tensor& k, const std::vector<Task>& tasks, int64_t window) {
  int64_t longest = 0;
  for (const Task& task : tasks) longest = std::max(longest, task.length);
  return {q.size(2),
          k.size(2),
          q.size(3),
          longest,
          window == 0 ? longest : std::min(window, longest),
          1.0f / std::sqrt(static_cast<float>(q.size(3)))};
}

// [B, T, heads * D] with dense rows, to be read.
struct Tokens {
  explicit Tokens(const at::Tensor& x_BTHD)
      : x(with_dense_rows(x_BTHD.flatten(2))), stride(row_stride(x, {x.size(0) * x.size(1), x.size(2)})) {}
  template <class T>
  TokenRows<const T> rows() const {
    return {x.const_data_ptr<T>(), stride};
  }

  at::Tensor x;
  int64_t stride;
};

// Of a dense [B, T, heads, D], to be written.
template <class T>
TokenRows<T> rows_of(const at::Tensor& x_BTHD) {
  return {x_BTHD.mutable_data_ptr<T>(), x_BTHD.size(2) * x_BTHD.size(3)};
}

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD,
                                               const at::Tensor& v_BTKD, at::IntArrayRef lengths, int64_t window) {
  check_causal_attention(q_BTHD, k_BTKD, v_BTKD);
  check_documents(q_BTHD, lengths, window);
  const Tokens q(q_BTHD), k(k_BTKD), v(v_BTKD);
  const auto tasks = make_tasks(q_BTHD, k_BTKD.size(2), lengths);
  const Sizes sizes = make_sizes(q_BTHD, k_BTKD, tasks, window);
  at::Tensor y = at::empty(q_BTHD.sizes(), q_BTHD.options());
  at::Tensor log_sum_exp = at::empty(q_BTHD.sizes().slice(0, 3), q_BTHD.options().dtype(at::kFloat));
  dispatch_dtype("causal_attention", q_BTHD, [&](auto zero) {
    using T = decltype(zero);
    const ForwardTensors<T> tensors = {q.rows<T>(), k.rows<T>(), v.rows<T>(), rows_of<T>(y),
                                       log_sum_exp.mutable_data_ptr<float>()};
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (has_pair_gemm()) {
        return for_each(tasks, paired_forward_bytes(sizes),
                        [&](const Task& task, Scratch memory) { paired_forward(task, sizes, tensors, memory); });
      }
    }
    const int64_t numel = sizes.padded() * (5 * sizes.width() + kQueryBlock);
    for_each(tasks, numel * static_cast<int64_t>(sizeof(float)),
             [&](const Task& task, Scratch memory) { forward_task(task, sizes, tensors, memory); });
  });
  return {y, log_sum_exp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad_y_BTHD, const at::Tensor& q_BTHD,
                                                            const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                                                            const at::Tensor& y_BTHD, const at::Tensor& log_sum_exp,
                                                            at::IntArrayRef lengths, int64_t window) {
  check_documents(q_BTHD, lengths, window);
  const Tokens grad(grad_y_BTHD), q(q_BTHD), k(k_BTKD), v(v_BTKD), y(y_BTHD);
  const auto tasks = make_tasks(q_BTHD, k_BTKD.size(2), lengths);
  const Sizes sizes = make_sizes(q_BTHD, k_BTKD, tasks, window);
  at::Tensor grad_q = at::empty(q_BTHD.sizes(), q_BTHD.options()), grad_k = at::empty(k_BTKD.sizes(), k_BTKD.options()),
             grad_v = at::empty(v_BTKD.sizes(), v_BTKD.options());
  dispatch_dtype("causal_attention_backward", q_BTHD, [&](auto zero) {
    using T = decltype(zero);
    const BackwardTensors<T> tensors = {grad.rows<T>(),     q.rows<T>(),        k.rows<T>(),
                                        v.rows<T>(),        y.rows<T>(),        log_sum_exp.const_data_ptr<float>(),
                                        rows_of<T>(grad_q), rows_of<T>(grad_k), rows_of<T>(grad_v)};
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (has_pair_gemm()) {
        return for_each(tasks, paired_backward_bytes(sizes),
                        [&](const Task& task, Scratch memory) { paired_backward(task, sizes, tensors, memory); });
      }
    }
    const int64_t numel = sizes.padded() * (8 * sizes.width() + 1 + 2 * kQueryBlock);
    for_each(tasks, numel * static_cast<int64_t>(sizeof(float)),
             [&](const Task& task, Scratch memory) { backward_task(task, sizes, tensors, memory); });
  });
  return {grad_q, grad_k, grad_v};
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, at::IntArrayRef lengths, int64_t window) {
    static const auto op =
        find_operator<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                         at::IntArrayRef, int64_t)>("fsdp::causal_attention_forward");
    auto [y, log_sum_exp] = op.call(q, k, v, lengths, window);
    context->save_for_backward({q, k, v, y, log_sum_exp});
    context->saved_data["lengths"] = lengths.vec();
    context->saved_data["window"] = window;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
        const at::Tensor&, at::IntArrayRef, int64_t)>("fsdp::causal_attention_backward");
    const auto saved = context->get_saved_variables();
    const auto lengths = context->saved_data["lengths"].toIntVector();
    const int64_t window = context->saved_data["window"].toInt();
    auto [grad_q, grad_k, grad_v] =
        op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], lengths, window);
    return {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void check_causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(1) == k.size(1) && q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
              "[causal_attention] q [B, T, H, D], k and v [B, T, K, D] needed, H a multiple of K: got ", q.sizes(),
              ", ", k.sizes(), ", ", v.sizes());
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "[causal_attention] q is ",
              q.scalar_type(), ", k ", k.scalar_type(), ", v ", v.scalar_type(), ": cast them to one dtype");
}

void check_documents(const at::Tensor& q, at::IntArrayRef lengths, int64_t window) {
  TORCH_CHECK(window >= 0, "[causal_attention] window: got ", window, ", expected 0 (all keys) or a number of keys");
  if (lengths.empty()) return;
  int64_t total = 0;
  for (const int64_t count : lengths) {
    TORCH_CHECK(count > 0, "[causal_attention] document_lengths: got ", count, ", expected positive numbers");
    total += count;
  }
  TORCH_CHECK(total == q.size(0) * q.size(1), "[causal_attention] document_lengths add up to ", total, ", expected ",
              q.size(0) * q.size(1), " tokens");
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            at::IntArrayRef document_lengths, int64_t window) {
  if (q.is_cpu()) return CausalAttention::apply(q, k, v, document_lengths, window);
  static const auto on_device =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef, int64_t)>(
          "fsdp::causal_attention");
  return on_device.call(q, k, v, document_lengths, window);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  // On devices other than the CPU.
  library.def("causal_attention(Tensor q, Tensor k, Tensor v, int[] lengths, int window) -> Tensor");
  library.def("causal_attention_forward(Tensor q, Tensor k, Tensor v, int[] lengths, int window) -> (Tensor, Tensor)");
  library.def(
      "causal_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor y, Tensor log_sum_exp, int[] "
      "lengths, int window) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("causal_attention_forward", forward_cpu);
  library.impl("causal_attention_backward", backward_cpu);
}

}  // namespace fsdp::kernels
