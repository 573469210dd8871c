#include "kernels/cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/dispatch.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <class T>
FSDP_ALWAYS_INLINE float log_sum_exp_of(const T* logits, int64_t vocab) {
  const int64_t whole = vocab - vocab % kLanes, rest = vocab - whole;
  const Float tail = simd::load_first(logits + whole, rest, kLowest);
  Float highest = tail;
  for (int64_t i = 0; i < whole; i += kLanes) highest = simd::max(highest, simd::load(logits + i));
  const float top = simd::max(highest);
  Float total = {};
  for (int64_t i = 0; i < whole; i += kLanes) total += simd::exp(simd::load(logits + i) - top);
  if (rest) {
    const Float in_tail = simd::exp(tail - top);
    for (int64_t i = 0; i < rest; ++i) total[i] += in_tail[i];
  }
  return top + std::log(simd::sum(total));
}

// (softmax(logits) - one_hot(target)) * scale
template <class T>
FSDP_ALWAYS_INLINE void gradient_row_of(const T* logits, float log_sum_exp, int64_t target, float scale, T* grad,
                                        int64_t vocab) {
  const int64_t whole = vocab - vocab % kLanes, rest = vocab - whole;
  for (int64_t i = 0; i < whole; i += kLanes)
    simd::store(grad + i, simd::exp(simd::load(logits + i) - log_sum_exp) * scale);
  if (rest)
    simd::store_first(grad + whole, simd::exp(simd::load_first(logits + whole, rest) - log_sum_exp) * scale, rest);
  grad[target] = static_cast<T>((std::exp(static_cast<float>(logits[target]) - log_sum_exp) - 1.0f) * scale);
}

FSDP_SIMD_CLONES float log_sum_exp(const float* logits, int64_t vocab) { return log_sum_exp_of(logits, vocab); }

FSDP_SIMD_CLONES float log_sum_exp(const at::BFloat16* logits, int64_t vocab) { return log_sum_exp_of(logits, vocab); }

FSDP_SIMD_CLONES void gradient_row(const float* logits, float log_sum_exp, int64_t target, float scale, float* grad,
                                   int64_t vocab) {
  gradient_row_of(logits, log_sum_exp, target, scale, grad, vocab);
}

FSDP_SIMD_CLONES void gradient_row(const at::BFloat16* logits, float log_sum_exp, int64_t target, float scale,
                                   at::BFloat16* grad, int64_t vocab) {
  gradient_row_of(logits, log_sum_exp, target, scale, grad, vocab);
}

int64_t rows_per_task(int64_t vocab) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, vocab)); }

void check_inputs(const at::Tensor& logits, const at::Tensor& targets) {
  TORCH_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0),
              "[cross_entropy] logits [N, V] and targets [N] needed: got ", logits.sizes(), " and ", targets.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong, "[cross_entropy] targets: got ", targets.scalar_type(),
              ", expected int64");
}

void check_targets(const int64_t* targets, int64_t count, int64_t vocab) {
  for (int64_t row = 0; row < count; ++row) {
    TORCH_CHECK_INDEX(targets[row] == kIgnoreIndex || (targets[row] >= 0 && targets[row] < vocab),
                      "[cross_entropy] target of row ", row, ": got ", targets[row], ", expected 0..", vocab - 1,
                      " (the vocabulary has ", vocab, " entries) or ", kIgnoreIndex, " to ignore the row");
  }
}

int64_t count_valid(const int64_t* targets, int64_t count) {
  return count - std::count(targets, targets + count, kIgnoreIndex);
}

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& logits_NV, const at::Tensor& targets_N, bool mean) {
  check_inputs(logits_NV, targets_N);
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  check_targets(target, count, vocab);
  at::Tensor normaliser = at::empty({count}, logits.options().dtype(at::kFloat));
  float* normaliser_of = normaliser.mutable_data_ptr<float>();
  double total = 0;
  dispatch_dtype("cross_entropy", logits, [&](auto zero) {
    using T = decltype(zero);
    const T* row_of = logits.const_data_ptr<T>();
    at::parallel_for(0, count, rows_per_task(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        normaliser_of[row] = target[row] == kIgnoreIndex ? 0.0f : log_sum_exp(row_of + row * vocab, vocab);
    });
    for (int64_t row = 0; row < count; ++row)
      if (target[row] != kIgnoreIndex)
        total += normaliser_of[row] - static_cast<float>(row_of[row * vocab + target[row]]);
  });
  const auto valid = std::max<int64_t>(1, count_valid(target, count));
  const double loss = mean ? total / static_cast<double>(valid) : total;
  return {at::scalar_tensor(loss, logits.options().dtype(at::kFloat)), normaliser};
}

at::Tensor backward_cpu(const at::Tensor& grad_loss, const at::Tensor& logits_NV, const at::Tensor& targets_N,
                        const at::Tensor& normaliser, bool mean) {
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float* normaliser_of = normaliser.const_data_ptr<float>();
  const auto valid = std::max<int64_t>(1, count_valid(target, count));
  const float scale = grad_loss.item<float>() / (mean ? static_cast<float>(valid) : 1.0f);
  at::Tensor grad = at::empty(logits.sizes(), logits.options());
  dispatch_dtype("cross_entropy_backward", logits, [&](auto zero) {
    using T = decltype(zero);
    const T* row_of = logits.const_data_ptr<T>();
    T* grad_of = grad.mutable_data_ptr<T>();
    at::parallel_for(0, count, rows_per_task(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (target[row] == kIgnoreIndex)
          std::fill_n(grad_of + row * vocab, vocab, T(0));
        else
          gradient_row(row_of + row * vocab, normaliser_of[row], target[row], scale, grad_of + row * vocab, vocab);
      }
    });
  });
  return grad;
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits_NV,
                            const at::Tensor& targets_N, bool mean) {
    static const auto op =
        find_operator<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, bool)>(
            "fsdp::cross_entropy_forward");
    auto [loss, normaliser] = op.call(logits_NV, targets_N, mean);
    context->save_for_backward({logits_NV, targets_N, normaliser});
    context->saved_data["mean"] = mean;
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op =
        find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>(
            "fsdp::cross_entropy_backward");
    const auto saved = context->get_saved_variables();
    const bool mean = context->saved_data["mean"].toBool();
    return {op.call(grads[0], saved[0], saved[1], saved[2], mean), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits_NV, const at::Tensor& targets_N, Reduction reduction) {
  return CrossEntropy::apply(logits_NV, targets_N, reduction == Reduction::kMean);
}

int64_t count_valid_targets(const at::Tensor& targets) {
  const at::Tensor flat = targets.contiguous();
  return count_valid(flat.const_data_ptr<int64_t>(), flat.numel());
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("cross_entropy_forward(Tensor logits, Tensor targets, bool mean) -> (Tensor, Tensor)");
  library.def(
      "cross_entropy_backward(Tensor grad, Tensor logits, Tensor targets, Tensor normaliser, bool mean) -> Tensor");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("cross_entropy_forward", forward_cpu);
  library.impl("cross_entropy_backward", backward_cpu);
}

}  // namespace fsdp::kernels
