#include "kernels/operators/cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/operators/cross_entropy_parts.h"
#include "kernels/raw/rows/cross_entropy.h"

namespace fsdp::kernels {
namespace {

raw::LossGradient make_loss_gradient(const LossTerms& terms, float log_sum_exp, float scale, int64_t vocab) {
  const double slope = 1 + 2 * terms.z_loss * log_sum_exp;
  return {log_sum_exp, static_cast<float>(slope),
          static_cast<float>(terms.label_smoothing / static_cast<double>(vocab)),
          static_cast<float>(1 - terms.label_smoothing), scale};
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

template <class T>
double row_loss(const T* logits, float log_sum_exp, int64_t target, const LossTerms& terms, int64_t vocab) {
  const double at_target = raw::to_float(logits[target]), normaliser = log_sum_exp;
  double loss = normaliser - at_target;
  if (terms.label_smoothing > 0) loss += terms.label_smoothing * (at_target - raw::mean(logits, vocab));
  if (terms.z_loss > 0) loss += terms.z_loss * normaliser * normaliser;
  return loss;
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_cpu(const at::Tensor& logits_NV, const at::Tensor& targets_N,
                                                             bool mean, double z_loss, double label_smoothing);
at::Tensor cross_entropy_backward_cpu(const at::Tensor& grad_loss, const at::Tensor& logits_NV,
                                      const at::Tensor& targets_N, const at::Tensor& normaliser, bool mean,
                                      double z_loss, double label_smoothing);

// fp16 in pieces of rows: all logits widened would be what is large here. `body(begin, count)`.
template <class Body>
void for_each_half_piece(const at::Tensor& logits_NV, const Body& body) {
  constexpr int64_t kPieceNumel = int64_t{1} << 18;
  const int64_t rows = std::max<int64_t>(1, kPieceNumel / std::max<int64_t>(1, logits_NV.size(1)));
  for (int64_t begin = 0; begin < logits_NV.size(0); begin += rows)
    body(begin, std::min(rows, logits_NV.size(0) - begin));
}

double divisor_of(const at::Tensor& targets_N, bool mean) {
  return mean ? static_cast<double>(std::max<int64_t>(1, count_valid_targets(targets_N))) : 1;
}

std::tuple<at::Tensor, at::Tensor> half_forward(const at::Tensor& logits_NV, const at::Tensor& targets_N, bool mean,
                                                const LossTerms& terms) {
  const at::TensorOptions wide = logits_NV.options().dtype(at::kFloat);
  at::Tensor normaliser = at::empty({logits_NV.size(0)}, wide);
  double total = 0;
  for_each_half_piece(logits_NV, [&](int64_t begin, int64_t count) {
    const auto [loss, piece] =
        cross_entropy_forward_cpu(widened(logits_NV.narrow(0, begin, count)), targets_N.narrow(0, begin, count), false,
                                  terms.z_loss, terms.label_smoothing);
    total += loss.item<float>();
    normaliser.narrow(0, begin, count).copy_(piece);
  });
  return {at::scalar_tensor(total / divisor_of(targets_N, mean), wide), normaliser};
}

at::Tensor half_backward(const at::Tensor& grad_loss, const at::Tensor& logits_NV, const at::Tensor& targets_N,
                         const at::Tensor& normaliser, bool mean, const LossTerms& terms) {
  at::Tensor grad = at::empty(logits_NV.sizes(), logits_NV.options());
  const at::Tensor of_sum = grad_loss / divisor_of(targets_N, mean);
  for_each_half_piece(logits_NV, [&](int64_t begin, int64_t count) {
    grad.narrow(0, begin, count)
        .copy_(cross_entropy_backward_cpu(of_sum, widened(logits_NV.narrow(0, begin, count)),
                                          targets_N.narrow(0, begin, count), normaliser.narrow(0, begin, count), false,
                                          terms.z_loss, terms.label_smoothing));
  });
  return grad;
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_cpu(const at::Tensor& logits_NV, const at::Tensor& targets_N,
                                                             bool mean, double z_loss, double label_smoothing) {
  const LossTerms terms{z_loss, label_smoothing};
  check_cross_entropy(logits_NV, targets_N, terms);
  if (is_half_on_cpu(logits_NV)) return half_forward(logits_NV, targets_N, mean, terms);
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  check_targets(target, count, vocab);
  at::Tensor normaliser = at::empty({count}, logits.options().dtype(at::kFloat));
  float* normaliser_of = normaliser.mutable_data_ptr<float>();
  std::vector<double> losses(static_cast<size_t>(count));
  dispatch_dtype("cross_entropy", logits, [&](auto zero) {
    using T = decltype(zero);
    const auto* row_of = raw_data(logits.const_data_ptr<T>());
    parallel_for(0, count, rows_per_task(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const bool counts = target[row] != kIgnoreIndex;
        const auto* values = row_of + row * vocab;
        normaliser_of[row] = counts ? raw::log_sum_exp(values, vocab) : 0.0f;
        if (counts) losses[static_cast<size_t>(row)] = row_loss(values, normaliser_of[row], target[row], terms, vocab);
      }
    });
  });
  const double total = std::accumulate(losses.begin(), losses.end(), 0.0);
  const auto valid = std::max<int64_t>(1, count_valid(target, count));
  const double loss = mean ? total / static_cast<double>(valid) : total;
  return {at::scalar_tensor(loss, logits.options().dtype(at::kFloat)), normaliser};
}

at::Tensor cross_entropy_backward_cpu(const at::Tensor& grad_loss, const at::Tensor& logits_NV,
                                      const at::Tensor& targets_N, const at::Tensor& normaliser, bool mean,
                                      double z_loss, double label_smoothing) {
  if (is_half_on_cpu(logits_NV))
    return half_backward(grad_loss, logits_NV, targets_N, normaliser, mean, {z_loss, label_smoothing});
  const LossTerms terms{z_loss, label_smoothing};
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float* normaliser_of = normaliser.const_data_ptr<float>();
  const auto valid = std::max<int64_t>(1, count_valid(target, count));
  const float scale = grad_loss.item<float>() / (mean ? static_cast<float>(valid) : 1.0f);
  at::Tensor grad = at::empty(logits.sizes(), logits.options());
  dispatch_dtype("cross_entropy_backward", logits, [&](auto zero) {
    using T = decltype(zero);
    const auto* row_of = raw_data(logits.const_data_ptr<T>());
    auto* grad_of = raw_data(grad.mutable_data_ptr<T>());
    parallel_for(0, count, rows_per_task(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        auto* out = grad_of + row * vocab;
        if (target[row] == kIgnoreIndex)
          std::fill_n(out, vocab, Raw<T>{});
        else
          raw::loss_gradient(row_of + row * vocab, make_loss_gradient(terms, normaliser_of[row], scale, vocab),
                             target[row], out, vocab);
      }
    });
  });
  return grad;
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits_NV,
                            const at::Tensor& targets_N, bool mean, double z_loss, double label_smoothing) {
    static const auto op = find_operator<CrossEntropyForward>("fsdp::cross_entropy_forward");
    auto [loss, normaliser] = op.call(logits_NV, targets_N, mean, z_loss, label_smoothing);
    context->save_for_backward({logits_NV, targets_N, normaliser});
    context->saved_data["mean"] = mean;
    context->saved_data["z_loss"] = z_loss;
    context->saved_data["label_smoothing"] = label_smoothing;
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<CrossEntropyBackward>("fsdp::cross_entropy_backward");
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    torch::autograd::variable_list result(5);
    result[0] = op.call(grads[0], saved[0], saved[1], saved[2], data["mean"].toBool(), data["z_loss"].toDouble(),
                        data["label_smoothing"].toDouble());
    return once_differentiable("cross_entropy", "torch::cross_entropy_loss", grads, std::move(result));
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits_NV, const at::Tensor& targets_N, Reduction reduction,
                         const LossTerms& terms) {
  return CrossEntropy::apply(logits_NV, targets_N, reduction == Reduction::kMean, terms.z_loss, terms.label_smoothing);
}

void check_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const LossTerms& terms) {
  TORCH_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0),
              "[cross_entropy] logits [N, V] and targets [N] needed: got ", logits.sizes(), " and ", targets.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong, "[cross_entropy] targets: got ", targets.scalar_type(),
              ", expected int64");
  TORCH_CHECK(std::isfinite(terms.z_loss) && terms.z_loss >= 0, "[cross_entropy] z_loss: got ", terms.z_loss,
              ", expected a number from 0 on");
  TORCH_CHECK(terms.label_smoothing >= 0 && terms.label_smoothing <= 1, "[cross_entropy] label_smoothing: got ",
              terms.label_smoothing, ", expected a number from 0 to 1");
}

int64_t count_valid_targets(const at::Tensor& targets) {
  TORCH_CHECK(targets.is_cpu(), "[count_valid_targets] got targets on ", targets.device(),
              ", expected them on the CPU");
  const at::Tensor flat = targets.contiguous();
  return count_valid(flat.const_data_ptr<int64_t>(), flat.numel());
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def(
      "cross_entropy_forward(Tensor logits, Tensor targets, bool mean, float z_loss, float label_smoothing) -> "
      "(Tensor, Tensor)");
  library.def(
      "cross_entropy_backward(Tensor grad, Tensor logits, Tensor targets, Tensor normaliser, bool mean, float z_loss, "
      "float label_smoothing) -> Tensor");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("cross_entropy_forward", cross_entropy_forward_cpu);
  library.impl("cross_entropy_backward", cross_entropy_backward_cpu);
}

}  // namespace fsdp::kernels
