#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>

#include "kernels/cross_entropy.h"
#include "kernels/cross_entropy_parts.h"
#include "kernels/dispatch.h"
#include "kernels/input_checks.h"
#include "kernels/linear_parts.h"

namespace fsdp::kernels {
namespace {

void for_each_chunk(int64_t rows, int64_t vocab, const std::function<void(int64_t begin, int64_t count)>& body) {
  const int64_t at_a_time = std::max<int64_t>(1, kLogitsAtATime / std::max<int64_t>(1, vocab));
  for (int64_t begin = 0; begin < rows; begin += at_a_time) body(begin, std::min(at_a_time, rows - begin));
}

struct Sums {
  at::Tensor loss;        // fp32 scalar
  at::Tensor normaliser;  // [N] fp32
};

Sums forward_sums(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N, bool mean,
                  const LossTerms& terms) {
  static const auto op = find_operator<CrossEntropyForward>("fsdp::cross_entropy_forward");
  check_linear_cross_entropy(x_NE, weight_VE, targets_N);
  const at::Tensor normaliser = at::empty({x_NE.size(0)}, x_NE.options().dtype(at::kFloat));
  double total = 0;
  for_each_chunk(x_NE.size(0), weight_VE.size(0), [&](int64_t begin, int64_t count) {
    const auto [loss, chunk] = op.call(product(x_NE.narrow(0, begin, count), weight_VE),
                                       targets_N.narrow(0, begin, count), false, terms.z_loss, terms.label_smoothing);
    normaliser.narrow(0, begin, count).copy_(chunk);
    total += loss.item<float>();
  });
  if (mean) total /= static_cast<double>(std::max<int64_t>(1, count_valid_targets(targets_N)));
  return {at::scalar_tensor(total, normaliser.options()), normaliser};
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NE,
                            const at::Tensor& weight_VE, const at::Tensor& targets_N, bool mean, double z_loss,
                            double label_smoothing) {
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    Sums sums = forward_sums(x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing});
    context->save_for_backward({x_NE, weight_VE, targets_N, sums.normaliser});
    context->saved_data["mean"] = mean;
    context->saved_data["z_loss"] = z_loss;
    context->saved_data["label_smoothing"] = label_smoothing;
    return sums.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<CrossEntropyBackward>("fsdp::cross_entropy_backward");
    const auto saved = context->get_saved_variables();
    const double z_loss = context->saved_data["z_loss"].toDouble();
    const double label_smoothing = context->saved_data["label_smoothing"].toDouble();
    const at::Tensor &x_NE = saved[0], &weight_VE = saved[1], &targets_N = saved[2], &normaliser = saved[3];
    at::Tensor scale = grads[0];
    if (context->saved_data["mean"].toBool()) scale = scale / std::max<int64_t>(1, count_valid_targets(targets_N));
    torch::autograd::variable_list result(6);
    if (context->needs_input_grad(0)) result[0] = at::empty_like(x_NE, at::MemoryFormat::Contiguous);
    std::optional<GradientSlot> slot, own;
    if (context->needs_input_grad(1)) {
      slot = find_gradient_slot(weight_VE);
      if (!slot) own = GradientSlot{at::zeros(weight_VE.sizes(), normaliser.options()), true, 1, {}};
    }
    GradientSlot* target = slot ? &*slot : own ? &*own : nullptr;
    for_each_chunk(x_NE.size(0), weight_VE.size(0), [&](int64_t begin, int64_t count) {
      const at::Tensor x = x_NE.narrow(0, begin, count);
      const at::Tensor grad = op.call(scale, product(x, weight_VE), targets_N.narrow(0, begin, count),
                                      normaliser.narrow(0, begin, count), false, z_loss, label_smoothing);
      if (result[0].defined()) result[0].narrow(0, begin, count).copy_(product(grad, weight_VE.t()));
      if (target == nullptr) return;
      fill_weight_gradient(*target, grad, x);
      target->adds = true;
    });
    if (target != nullptr && !target->adds) at::Tensor(target->target).zero_();  // there was no row
    if (slot) result[1] = std::move(slot->stand_in);
    if (own) result[1] = own->target.to(weight_VE.scalar_type());
    return result;
  }
};

at::Tensor linear_cross_entropy_without_gradient(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                                 const at::Tensor& targets_N, bool mean, double z_loss,
                                                 double label_smoothing) {
  return forward_sums(x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}).loss;
}

at::Tensor differentiable_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                               const at::Tensor& targets_N, bool mean, double z_loss,
                                               double label_smoothing) {
  return LinearCrossEntropy::apply(x_NE, weight_VE, targets_N, mean, z_loss, label_smoothing);
}

}  // namespace

void check_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N) {
  TORCH_CHECK(x_NE.dim() == 2 && weight_VE.dim() == 2 && x_NE.size(1) == weight_VE.size(1) && targets_N.dim() == 1 &&
                  targets_N.size(0) == x_NE.size(0),
              "[linear_cross_entropy] x [N, E], weight [V, E] and targets [N] needed: got ", x_NE.sizes(), ", ",
              weight_VE.sizes(), " and ", targets_N.sizes());
  TORCH_CHECK(x_NE.scalar_type() == weight_VE.scalar_type(), "[linear_cross_entropy] x is ", x_NE.scalar_type(),
              " and weight is ", weight_VE.scalar_type(), ": cast one of them");
}

at::Tensor linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                                Reduction reduction, const LossTerms& terms) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, double, double)>(
          "fsdp::linear_cross_entropy");
  return op.call(x_NE, weight_VE, targets_N, reduction == Reduction::kMean, terms.z_loss, terms.label_smoothing);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, bool mean, float z_loss, float label_smoothing) "
      "-> Tensor");
}
TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("linear_cross_entropy", linear_cross_entropy_without_gradient); }
TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("linear_cross_entropy", differentiable_linear_cross_entropy);
}

}  // namespace fsdp::kernels
