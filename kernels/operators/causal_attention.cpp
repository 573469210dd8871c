#include "kernels/operators/causal_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/base/dense_rows.h"
#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/raw/attention/causal_attention.h"
#include "kernels/raw/products/pair_gemm.h"

namespace fsdp::kernels {
namespace {

namespace attention = raw::attention;
using attention::Scratch;
using attention::Sizes;
using attention::Task;

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
  attention::TokenRows<const Raw<T>> rows() const {
    return {raw_data(x.const_data_ptr<T>()), stride};
  }

  at::Tensor x;
  int64_t stride;
};

// Of a dense [B, T, heads, D], to be written.
template <class T>
attention::TokenRows<Raw<T>> rows_of(const at::Tensor& x_BTHD) {
  return {raw_data(x_BTHD.mutable_data_ptr<T>()), x_BTHD.size(2) * x_BTHD.size(3)};
}

std::tuple<at::Tensor, at::Tensor> causal_attention_forward_cpu(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD,
                                                                const at::Tensor& v_BTKD, at::IntArrayRef lengths,
                                                                int64_t window) {
  check_causal_attention(q_BTHD, k_BTKD, v_BTKD);
  check_documents(q_BTHD, lengths, window);
  if (is_half_on_cpu(q_BTHD)) {
    const auto [y, log_sum_exp] =
        causal_attention_forward_cpu(widened(q_BTHD), widened(k_BTKD), widened(v_BTKD), lengths, window);
    return {narrowed(y), log_sum_exp};
  }
  const Tokens q(q_BTHD), k(k_BTKD), v(v_BTKD);
  const auto tasks = make_tasks(q_BTHD, k_BTKD.size(2), lengths);
  const Sizes sizes = make_sizes(q_BTHD, k_BTKD, tasks, window);
  at::Tensor y = at::empty(q_BTHD.sizes(), q_BTHD.options());
  at::Tensor log_sum_exp = at::empty(q_BTHD.sizes().slice(0, 3), q_BTHD.options().dtype(at::kFloat));
  dispatch_dtype("causal_attention", q_BTHD, [&](auto zero) {
    using T = decltype(zero);
    const attention::ForwardTensors<Raw<T>> tensors = {q.rows<T>(), k.rows<T>(), v.rows<T>(), rows_of<T>(y),
                                                       log_sum_exp.mutable_data_ptr<float>()};
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (raw::has_pair_gemm()) {
        return for_each(tasks, attention::paired_forward_bytes(sizes), [&](const Task& task, Scratch memory) {
          attention::paired_forward(task, sizes, tensors, memory);
        });
      }
    }
    for_each(tasks, attention::forward_bytes(sizes),
             [&](const Task& task, Scratch memory) { attention::forward(task, sizes, tensors, memory); });
  });
  return {y, log_sum_exp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> causal_attention_backward_cpu(
    const at::Tensor& grad_y_BTHD, const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
    const at::Tensor& y_BTHD, const at::Tensor& log_sum_exp, at::IntArrayRef lengths, int64_t window) {
  check_documents(q_BTHD, lengths, window);
  if (is_half_on_cpu(q_BTHD)) {
    const auto [grad_q, grad_k, grad_v] =
        causal_attention_backward_cpu(widened(grad_y_BTHD), widened(q_BTHD), widened(k_BTKD), widened(v_BTKD),
                                      widened(y_BTHD), log_sum_exp, lengths, window);
    return {narrowed(grad_q), narrowed(grad_k), narrowed(grad_v)};
  }
  const Tokens grad(grad_y_BTHD), q(q_BTHD), k(k_BTKD), v(v_BTKD), y(y_BTHD);
  const auto tasks = make_tasks(q_BTHD, k_BTKD.size(2), lengths);
  const Sizes sizes = make_sizes(q_BTHD, k_BTKD, tasks, window);
  at::Tensor grad_q = at::empty(q_BTHD.sizes(), q_BTHD.options()), grad_k = at::empty(k_BTKD.sizes(), k_BTKD.options()),
             grad_v = at::empty(v_BTKD.sizes(), v_BTKD.options());
  dispatch_dtype("causal_attention_backward", q_BTHD, [&](auto zero) {
    using T = decltype(zero);
    const attention::BackwardTensors<Raw<T>> tensors = {
        grad.rows<T>(),     q.rows<T>(),        k.rows<T>(),
        v.rows<T>(),        y.rows<T>(),        log_sum_exp.const_data_ptr<float>(),
        rows_of<T>(grad_q), rows_of<T>(grad_k), rows_of<T>(grad_v)};
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (raw::has_pair_gemm()) {
        return for_each(tasks, attention::paired_backward_bytes(sizes), [&](const Task& task, Scratch memory) {
          attention::paired_backward(task, sizes, tensors, memory);
        });
      }
    }
    for_each(tasks, attention::backward_bytes(sizes),
             [&](const Task& task, Scratch memory) { attention::backward(task, sizes, tensors, memory); });
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
    return once_differentiable("causal_attention", "torch::matmul and torch::softmax", grads,
                               {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor()});
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
  library.impl("causal_attention_forward", causal_attention_forward_cpu);
  library.impl("causal_attention_backward", causal_attention_backward_cpu);
}

}  // namespace fsdp::kernels
