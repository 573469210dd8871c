#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>

#include "kernels/base/dispatch.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/flat/pack.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/cross_entropy_parts.h"
#include "kernels/products/linear_parts.h"
#include "kernels/products/narrow_linear.h"
#include "kernels/products/nf4/nf4_linear.h"

namespace fsdp::kernels {
namespace {

constexpr const char* kLinearLossOfLibTorch = "torch::linear and torch::cross_entropy_loss";

int64_t logit_bytes(const at::Tensor& x_NE, int64_t rows, const at::Tensor& weight_VE) {
  return rows * weight_VE.size(0) * static_cast<int64_t>(x_NE.element_size());
}

// What a forward leaves for its backward, beside what every one leaves.
enum class Keeps {
  kNormalisers,  // logits are made once more
  kLogits,       // all of them
  kGradients,    // of x and of the weight, for a loss that has the gradient 1 (Liger Kernel's way)
};

// Three products are the least; the fourth is paid where neither all logits nor the weight's gradient are to stay.
Keeps choose_keeps(const at::Tensor& x_NE, const at::Tensor& weight_VE, bool records_graph) {
  const bool needs_gradients = records_graph && (x_NE.requires_grad() || weight_VE.requires_grad());
  if (!needs_gradients || x_NE.size(0) == 0) return Keeps::kNormalisers;
  if (logit_bytes(x_NE, x_NE.size(0), weight_VE) <= kMostLogitBytesKept) return Keeps::kLogits;
  // Gradients for a loss of gradient 1 are what a loss scale is there to avoid: fp16 would round them to zero.
  if (x_NE.scalar_type() == at::kHalf) return Keeps::kNormalisers;
  const bool fits = !weight_VE.requires_grad() || weight_VE.numel() <= kMostGradientKept;
  return fits && x_NE.is_cpu() ? Keeps::kGradients : Keeps::kNormalisers;
}

// The inputs of one call and what its forward is asked to keep.
struct Problem {
  at::Tensor x_NE, weight_VE, targets_N;
  bool mean;
  LossTerms terms;
  Keeps keeps;
};

// All rows at once where their logits stay anyway.
void for_each_chunk(const Problem& problem, const std::function<void(int64_t begin, int64_t count)>& body) {
  const int64_t rows = problem.x_NE.size(0);
  const int64_t row_bytes = logit_bytes(problem.x_NE, 1, problem.weight_VE);
  const int64_t at_a_time = problem.keeps == Keeps::kLogits ? rows : logit_rows_at_a_time(rows, row_bytes);
  for (int64_t begin = 0; begin < rows; begin += at_a_time) body(begin, std::min(at_a_time, rows - begin));
}

struct Results {
  at::Tensor loss;                       // fp32 scalar
  at::Tensor normaliser;                 // [N] fp32
  at::Tensor logits_NV;                  // kLogits
  at::Tensor grad_x_NE, grad_weight_VE;  // kGradients, the weight's in fp32; undefined where nobody will ask
};

// The gradient of a chunk's logits, for a loss with the gradient `scale`, a scalar tensor.
at::Tensor logits_gradient(const Problem& problem, const at::Tensor& scale, const at::Tensor& logits_CV, int64_t begin,
                           const at::Tensor& normaliser_N) {
  static const auto op = find_operator<CrossEntropyBackward>("fsdp::cross_entropy_backward");
  const int64_t count = logits_CV.size(0);
  return op.call(scale, logits_CV, problem.targets_N.narrow(0, begin, count), normaliser_N.narrow(0, begin, count),
                 false, problem.terms.z_loss, problem.terms.label_smoothing);
}

// Adds a chunk's part to the gradients that are wanted.
void add_gradients(const Problem& problem, const at::Tensor& grad_CV, int64_t begin, const at::Tensor& grad_x_NE,
                   GradientSlot* weight) {
  const int64_t count = grad_CV.size(0);
  if (grad_x_NE.defined()) grad_x_NE.narrow(0, begin, count).copy_(product(grad_CV, problem.weight_VE.t()));
  if (weight == nullptr) return;
  fill_weight_gradient(*weight, grad_CV, problem.x_NE.narrow(0, begin, count));
  weight->adds = true;
}

// A sum of a weight's gradient over chunks.
GradientSlot empty_sum(const at::Tensor& weight_VE) {
  return {at::empty(weight_VE.sizes(), weight_VE.options().dtype(at::kFloat).requires_grad(false)), false, 1, {}};
}

double divisor_of(const Problem& problem) {
  return problem.mean ? static_cast<double>(std::max<int64_t>(1, count_valid_targets(problem.targets_N))) : 1;
}

Results run_forward(const Problem& problem) {
  static const auto op = find_operator<CrossEntropyForward>("fsdp::cross_entropy_forward");
  const at::Tensor &x_NE = problem.x_NE, &weight_VE = problem.weight_VE;
  check_linear_cross_entropy(x_NE, weight_VE, problem.targets_N);
  const at::TensorOptions wide = x_NE.options().dtype(at::kFloat).requires_grad(false);
  Results results;
  results.normaliser = at::empty({x_NE.size(0)}, wide);
  const double divisor = divisor_of(problem);
  const bool makes_gradients = problem.keeps == Keeps::kGradients;
  const at::Tensor scale = at::scalar_tensor(1 / divisor, wide);
  std::optional<GradientSlot> sum;
  if (makes_gradients && x_NE.requires_grad()) results.grad_x_NE = at::empty(x_NE.sizes(), wide.dtype(x_NE.dtype()));
  if (makes_gradients && weight_VE.requires_grad()) sum = empty_sum(weight_VE);
  double total = 0;
  for_each_chunk(problem, [&](int64_t begin, int64_t count) {
    const at::Tensor logits = product(x_NE.narrow(0, begin, count), weight_VE);
    const auto [loss, chunk] = op.call(logits, problem.targets_N.narrow(0, begin, count), false, problem.terms.z_loss,
                                       problem.terms.label_smoothing);
    results.normaliser.narrow(0, begin, count).copy_(chunk);
    total += loss.item<float>();
    if (problem.keeps == Keeps::kLogits) results.logits_NV = logits;
    if (!makes_gradients) return;
    add_gradients(problem, logits_gradient(problem, scale, logits, begin, results.normaliser), begin, results.grad_x_NE,
                  sum ? &*sum : nullptr);
  });
  if (sum) results.grad_weight_VE = sum->target;
  results.loss = at::scalar_tensor(total / divisor, wide);
  return results;
}

struct Gradients {
  at::Tensor x_NE, weight_VE;
};

// Of all logits at once, which were kept.
Gradients gradients_of_logits(const Problem& problem, const Results& kept, const at::Tensor& scale, bool of_x,
                              bool of_weight) {
  const at::Tensor grad_NV = logits_gradient(problem, scale, kept.logits_NV, 0, kept.normaliser);
  return {of_x ? product(grad_NV, problem.weight_VE.t()) : at::Tensor(),
          of_weight ? weight_gradient(problem.weight_VE, grad_NV, problem.x_NE) : at::Tensor()};
}

// Of logits that are made once more, a chunk at a time.
Gradients gradients_of_chunks(const Problem& problem, const Results& kept, const at::Tensor& scale, bool of_x,
                              bool of_weight) {
  const at::Tensor &x_NE = problem.x_NE, &weight_VE = problem.weight_VE;
  Gradients result;
  if (of_x) result.x_NE = at::empty_like(x_NE, at::MemoryFormat::Contiguous);
  std::optional<GradientSlot> slot, own;
  if (of_weight) slot = find_gradient_slot(weight_VE);
  if (of_weight && !slot) own = empty_sum(weight_VE);
  GradientSlot* target = slot ? &*slot : own ? &*own : nullptr;
  for_each_chunk(problem, [&](int64_t begin, int64_t count) {
    const at::Tensor logits = product(x_NE.narrow(0, begin, count), weight_VE);
    add_gradients(problem, logits_gradient(problem, scale, logits, begin, kept.normaliser), begin, result.x_NE, target);
  });
  if (target != nullptr && !target->adds) at::Tensor(target->target).zero_();  // there was no row
  if (slot) result.weight_VE = std::move(slot->stand_in);
  if (own) result.weight_VE = own->target.to(weight_VE.scalar_type());
  return result;
}

// The forward's, times the loss's own gradient. They stay as they are: a graph that is kept has a second backward.
Gradients scaled_gradients(const Problem& problem, const Results& kept, const at::Tensor& grad_loss, bool of_x,
                           bool of_weight) {
  Gradients result;
  if (of_x) result.x_NE = kept.grad_x_NE * grad_loss;
  if (!of_weight) return result;
  if (std::optional<GradientSlot> slot = find_gradient_slot(problem.weight_VE)) {
    const double scale = slot->scale * grad_loss.item<double>();
    pack_gradient(slot->target.view({-1}), kept.grad_weight_VE.view({-1}), scale, slot->adds);
    result.weight_VE = std::move(slot->stand_in);
  } else {
    result.weight_VE = (kept.grad_weight_VE * grad_loss).to(problem.weight_VE.scalar_type());
  }
  return result;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NE,
                            const at::Tensor& weight_VE, const at::Tensor& targets_N, bool mean, double z_loss,
                            double label_smoothing, bool records_graph) {
    const Keeps keeps = choose_keeps(x_NE, weight_VE, records_graph);
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    Results results = run_forward({x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}, keeps});
    const bool needs_x = keeps != Keeps::kGradients;
    context->save_for_backward({needs_x ? x_NE : at::Tensor(), weight_VE, targets_N, results.normaliser,
                                results.logits_NV, results.grad_x_NE, results.grad_weight_VE});
    context->saved_data["keeps"] = static_cast<int64_t>(keeps);
    context->saved_data["mean"] = mean;
    context->saved_data["z_loss"] = z_loss;
    context->saved_data["label_smoothing"] = label_smoothing;
    return results.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const Problem problem{saved[0],
                          saved[1],
                          saved[2],
                          data["mean"].toBool(),
                          {data["z_loss"].toDouble(), data["label_smoothing"].toDouble()},
                          static_cast<Keeps>(data["keeps"].toInt())};
    const Results kept{{}, saved[3], saved[4], saved[5], saved[6]};
    const bool of_x = context->needs_input_grad(0), of_weight = context->needs_input_grad(1);
    const auto take = [&]() -> Gradients {
      if (problem.keeps == Keeps::kGradients) return scaled_gradients(problem, kept, grads[0], of_x, of_weight);
      const at::Tensor scale = problem.mean ? grads[0] / divisor_of(problem) : grads[0];
      const auto make = problem.keeps == Keeps::kLogits ? gradients_of_logits : gradients_of_chunks;
      return make(problem, kept, scale, of_x, of_weight);
    };
    const Gradients result = take();
    return once_differentiable("linear_cross_entropy", kLinearLossOfLibTorch, grads,
                               {result.x_NE, result.weight_VE, {}, {}, {}, {}, {}});
  }
};

// The weight is decoded in the forward only, which makes the gradient of x at once: nothing of it stays.
struct Nf4LinearCrossEntropy : torch::autograd::Function<Nf4LinearCrossEntropy> {
  // NOLINTNEXTLINE(readability-function-size): apply() takes arguments one by one
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NE, const at::Tensor& record,
                            int64_t vocab, const at::Tensor& targets_N, bool mean, double z_loss,
                            double label_smoothing, bool records_graph) {
    const Keeps keeps = records_graph && x_NE.requires_grad() ? Keeps::kGradients : Keeps::kNormalisers;
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    const at::Tensor weight_VE = decode_nf4(record, vocab, x_NE.size(1), x_NE.scalar_type());
    const Results results = run_forward({x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}, keeps});
    context->save_for_backward({results.grad_x_NE});
    return results.loss;
  }

  // The gradient stays as it is: a graph that is kept has a second backward.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    torch::autograd::variable_list result(8);
    if (context->needs_input_grad(0)) result[0] = context->get_saved_variables()[0] * grads[0];
    return once_differentiable("nf4_linear_cross_entropy", kLinearLossOfLibTorch, grads, std::move(result));
  }
};

at::Tensor nf4_linear_cross_entropy_without_gradient(const at::Tensor& x_NE, const at::Tensor& record, int64_t vocab,
                                                     const at::Tensor& targets_N, bool mean, double z_loss,
                                                     double label_smoothing) {
  const at::Tensor weight_VE = decode_nf4(record, vocab, x_NE.size(1), x_NE.scalar_type());
  return run_forward({x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}, Keeps::kNormalisers}).loss;
}

at::Tensor differentiable_nf4_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& record, int64_t vocab,
                                                   const at::Tensor& targets_N, bool mean, double z_loss,
                                                   double label_smoothing) {
  return Nf4LinearCrossEntropy::apply(x_NE, record, vocab, targets_N, mean, z_loss, label_smoothing,
                                      at::GradMode::is_enabled());
}

at::Tensor linear_cross_entropy_without_gradient(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                                 const at::Tensor& targets_N, bool mean, double z_loss,
                                                 double label_smoothing) {
  return run_forward({x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}, Keeps::kNormalisers}).loss;
}

at::Tensor differentiable_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                               const at::Tensor& targets_N, bool mean, double z_loss,
                                               double label_smoothing) {
  return LinearCrossEntropy::apply(x_NE, weight_VE, targets_N, mean, z_loss, label_smoothing,
                                   at::GradMode::is_enabled());
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
  if (is_narrow(weight_VE))
    return linear_cross_entropy(x_NE.to(at::kBFloat16), weight_VE.to(at::kBFloat16), targets_N, reduction, terms);
  // On a device the forward makes gradients for a loss of gradient 1: those of a mean would vanish in fp16.
  if (!x_NE.is_cpu() && x_NE.scalar_type() == at::kHalf && reduction == Reduction::kMean) {
    const at::Tensor valid = targets_N.ne(kIgnoreIndex).sum().clamp_min(1);
    return linear_cross_entropy(x_NE, weight_VE, targets_N, Reduction::kSum, terms) / valid;
  }
  return op.call(x_NE, weight_VE, targets_N, reduction == Reduction::kMean, terms.z_loss, terms.label_smoothing);
}

at::Tensor nf4_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& record, int64_t vocab,
                                    const at::Tensor& targets_N, Reduction reduction, const LossTerms& terms) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, const at::Tensor&, bool, double, double)>(
          "fsdp::nf4_linear_cross_entropy");
  TORCH_CHECK(x_NE.dim() == 2 && x_NE.is_cpu(), "[nf4] got x ", x_NE.sizes(), " on ", x_NE.device(),
              ", expected [N, E] on the CPU.");
  return op.call(x_NE, record, vocab, targets_N, reduction == Reduction::kMean, terms.z_loss, terms.label_smoothing);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def(
      "nf4_linear_cross_entropy(Tensor x, Tensor record, int vocab, Tensor targets, bool mean, float z_loss, float "
      "label_smoothing) -> Tensor");
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, bool mean, float z_loss, float label_smoothing) "
      "-> Tensor");
}
TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("linear_cross_entropy", linear_cross_entropy_without_gradient);
  library.impl("nf4_linear_cross_entropy", nf4_linear_cross_entropy_without_gradient);
}
TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("linear_cross_entropy", differentiable_linear_cross_entropy);
  library.impl("nf4_linear_cross_entropy", differentiable_nf4_linear_cross_entropy);
}

}  // namespace fsdp::kernels
