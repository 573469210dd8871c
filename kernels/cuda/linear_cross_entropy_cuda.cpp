// [Note: gradients in the forward] Three products are the least: logits, the gradient of x, that of the weight. On the
// CPU large weights cost a fourth, because neither their logits nor their gradient are to stay. Here the forward always
// makes both gradients while a chunk's logits are at hand, as Liger Kernel does, and the backward multiplies them with
// the gradient of the loss. What that costs: both gradients, which the backward would give anyway, are there one
// operator earlier; beside them it takes one chunk of logits, which becomes their gradient in place.
//   The weight's gradient is a sum over chunks. A product sums a chunk in fp32, but a bf16 sum is rounded after each of
// them: with c chunks of like size the error is sqrt((1 + 4 + .. + c^2) / c^2) of one rounding's, 1.4 for 4 chunks, 2.4
// for 16. Beyond kMostChunksInNarrowSum chunks the sum is fp32. In one fp32 sum for all cases, the largest vocabularies
// would cost twice the memory of their gradient, and each chunk twice the traffic of adding to it.
//   Saved: the two gradients, in saved_data, because the backward gives them away without a copy; so it runs once.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "kernels/base/gradient_slot.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/cuda/tensors.h"
#include "kernels/operators/cross_entropy.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr auto kLinearCrossEntropy = "linear_cross_entropy";
constexpr int64_t kRowsTogether = 128;  // a chunk is a multiple of: what a product's tiles like

struct Chunks {
  int64_t rows, count;
};

// Chunks of like size.
Chunks cut_rows(int64_t rows, int64_t row_bytes) {
  const int64_t most = std::max<int64_t>(kRowsTogether, kDeviceLogitBytesAtATime / std::max<int64_t>(1, row_bytes));
  const int64_t count = std::max<int64_t>(1, (rows + most - 1) / most), even = (rows + count - 1) / count;
  const int64_t together = std::clamp((even + kRowsTogether - 1) / kRowsTogether * kRowsTogether, kRowsTogether,
                                      most / kRowsTogether * kRowsTogether);
  return {together, (rows + together - 1) / together};
}

// What a forward is asked for.
struct Problem {
  at::Tensor x_NE, weight_VE, targets_N;
  Divisor divisor;
  LossTerms terms;
};

// The loss, and the gradients for a loss that has the gradient 1, undefined where nobody wants them.
struct Results {
  at::Tensor loss, grad_x_NE, grad_weight_VE;
};

LossRows chunk_rows(const Problem& problem, const at::Tensor& logits_CV, int64_t begin) {
  return {logits_CV.const_data_ptr(),
          problem.targets_N.const_data_ptr<int64_t>() + begin,
          element_of(kLinearCrossEntropy, logits_CV),
          logits_CV.size(0),
          logits_CV.size(1),
          problem.terms.z_loss,
          problem.terms.label_smoothing};
}

void add_weight_gradient(const at::Tensor& sum_VE, const at::Tensor& grad_CV, const at::Tensor& x_CE, bool is_first) {
  at::Tensor sum = sum_VE;
  const double beta = is_first ? 0 : 1;
  if (sum.scalar_type() == x_CE.scalar_type())
    at::addmm_out(sum, sum, grad_CV.t(), x_CE, beta);
  else
    at::addmm_out(sum, sum, grad_CV.t(), x_CE, at::kFloat, beta);
}

// One chunk of rows from `begin` on: their losses, and their part of the gradients in `results`.
void run_chunk(const Problem& problem, const at::Tensor& logits_CV, int64_t begin, const at::Tensor& scale,
               const at::Tensor& losses_N, const Results& results, const at::Tensor& unused_normalisers) {
  const int64_t count = logits_CV.size(0);
  const at::Tensor x_CE = problem.x_NE.narrow(0, begin, count);
  at::Tensor logits = logits_CV;
  at::mm_out(logits, x_CE, problem.weight_VE.t());
  const LossRows rows = chunk_rows(problem, logits, begin);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  double* losses = losses_N.mutable_data_ptr<double>() + begin;
  if (!results.grad_x_NE.defined() && !results.grad_weight_VE.defined()) {
    C10_CUDA_CHECK(launch_row_losses(rows, losses, unused_normalisers.mutable_data_ptr<float>(), stream));
    return;
  }
  C10_CUDA_CHECK(
      launch_row_losses_and_gradients(rows, scale.const_data_ptr<float>(), losses, logits.mutable_data_ptr(), stream));
  if (results.grad_x_NE.defined()) {
    at::Tensor grad_x_CE = results.grad_x_NE.narrow(0, begin, count);
    at::mm_out(grad_x_CE, logits, problem.weight_VE);
  }
  if (results.grad_weight_VE.defined()) add_weight_gradient(results.grad_weight_VE, logits, x_CE, begin == 0);
}

Results run(const Problem& problem, bool needs_grad_x, bool needs_grad_weight) {
  const OnDeviceOf device(problem.x_NE);
  const at::TensorOptions options = problem.x_NE.options().requires_grad(false);
  const at::TensorOptions wide = options.dtype(at::kFloat);
  const int64_t rows = problem.x_NE.size(0), vocab = problem.weight_VE.size(0);
  const Chunks chunks = cut_rows(rows, vocab * problem.x_NE.element_size());
  const at::Tensor losses_N = at::empty({rows}, options.dtype(at::kDouble)), scale = at::empty({}, wide);
  Results results;
  results.loss = at::empty({}, wide);
  if (needs_grad_x) results.grad_x_NE = at::empty(problem.x_NE.sizes(), options);
  if (needs_grad_weight) {
    results.grad_weight_VE =
        at::empty(problem.weight_VE.sizes(), chunks.count > kMostChunksInNarrowSum ? wide : options);
    if (rows == 0) results.grad_weight_VE.zero_();
  }
  const auto* targets = problem.targets_N.const_data_ptr<int64_t>();
  C10_CUDA_CHECK(
      launch_loss_scale(nullptr, targets, rows, problem.divisor, scale.mutable_data_ptr<float>(), device.stream()));
  const at::Tensor logits_CV = at::empty({std::min(rows, chunks.rows), vocab}, options);
  const at::Tensor normalisers = at::empty({logits_CV.size(0)}, wide);
  for (int64_t begin = 0; begin < rows; begin += chunks.rows) {
    const int64_t count = std::min(chunks.rows, rows - begin);
    run_chunk(problem, logits_CV.narrow(0, 0, count), begin, scale, losses_N, results, normalisers);
  }
  C10_CUDA_CHECK(launch_loss_sum(losses_N.const_data_ptr<double>(), targets, rows, problem.divisor,
                                 results.loss.mutable_data_ptr<float>(), device.stream()));
  return results;
}

Problem make_problem(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N, bool mean,
                     const LossTerms& terms) {
  check_linear_cross_entropy(x_NE, weight_VE, targets_N);
  check_cross_entropy(x_NE, targets_N, terms);
  check_devices(kLinearCrossEntropy, {x_NE, weight_VE, targets_N});
  element_of(kLinearCrossEntropy, x_NE);
  return {x_NE.detach(), weight_VE.detach(), targets_N.contiguous(), mean ? Divisor::kValidTargets : Divisor::kOne,
          terms};
}

// Multiplies `grad` with the gradient of the loss, in place.
at::Tensor scale_gradient(at::Tensor grad, const at::Tensor& grad_loss) {
  const OnDeviceOf device(grad);
  C10_CUDA_CHECK(launch_scale(grad.mutable_data_ptr(), element_of(kLinearCrossEntropy, grad), grad.numel(),
                              grad_loss.const_data_ptr<float>(), device.stream()));
  return grad;
}

at::Tensor weight_result(const at::Tensor& weight_VE, at::Tensor grad_VE, const at::Tensor& grad_loss) {
  std::optional<GradientSlot> slot = find_gradient_slot(weight_VE);
  if (!slot) return scale_gradient(std::move(grad_VE), grad_loss).to(weight_VE.scalar_type());
  const OnDeviceOf device(grad_VE);
  const ScaledCopy arrays{grad_VE.const_data_ptr(),
                          element_of(kLinearCrossEntropy, grad_VE),
                          slot->target.mutable_data_ptr<float>(),
                          grad_VE.numel(),
                          static_cast<float>(slot->scale),
                          grad_loss.const_data_ptr<float>(),
                          slot->adds ? Fill::kAdd : Fill::kWrite};
  C10_CUDA_CHECK(launch_scaled_copy(arrays, device.stream()));
  return std::move(slot->stand_in);
}

// Takes a tensor out of what the forward kept.
at::Tensor take(torch::autograd::AutogradContext* context, const char* name) {
  const auto found = context->saved_data.find(name);
  if (found == context->saved_data.end()) return {};
  at::Tensor tensor = found->second.toTensor();
  context->saved_data.erase(found);
  return tensor;
}

struct LinearCrossEntropyOnCuda : torch::autograd::Function<LinearCrossEntropyOnCuda> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_NE,
                            const at::Tensor& weight_VE, const at::Tensor& targets_N, bool mean, double z_loss,
                            double label_smoothing, bool records_graph) {
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    const Problem problem = make_problem(x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing});
    Results results = run(problem, records_graph && x_NE.requires_grad(), records_graph && weight_VE.requires_grad());
    context->save_for_backward({weight_VE});  // who it is, for its slot; the backward does not read it
    if (results.grad_x_NE.defined()) context->saved_data["grad_x"] = std::move(results.grad_x_NE);
    if (results.grad_weight_VE.defined()) context->saved_data["grad_weight"] = std::move(results.grad_weight_VE);
    context->saved_data["is_kept"] = true;
    return results.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    TORCH_CHECK(context->saved_data.at("is_kept").toBool(),
                "[linear_cross_entropy] a second backward through one forward: on CUDA the first one takes what the "
                "forward kept. Run the forward again.");
    context->saved_data["is_kept"] = false;
    const at::Tensor weight_VE = context->get_saved_variables()[0], grad_loss = grads[0].to(at::kFloat).contiguous();
    at::Tensor grad_x_NE = take(context, "grad_x"), grad_weight_VE = take(context, "grad_weight");
    torch::autograd::variable_list result(7);
    if (grad_x_NE.defined() && context->needs_input_grad(0))
      result[0] = scale_gradient(std::move(grad_x_NE), grad_loss);
    if (grad_weight_VE.defined() && context->needs_input_grad(1))
      result[1] = weight_result(weight_VE, std::move(grad_weight_VE), grad_loss);
    return once_differentiable(kLinearCrossEntropy, "torch::linear and torch::cross_entropy_loss", grads,
                               std::move(result));
  }
};

at::Tensor linear_cross_entropy_forward_only(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                             const at::Tensor& targets_N, bool mean, double z_loss,
                                             double label_smoothing) {
  return run(make_problem(x_NE, weight_VE, targets_N, mean, {z_loss, label_smoothing}), false, false).loss;
}

at::Tensor linear_cross_entropy_differentiable(const at::Tensor& x_NE, const at::Tensor& weight_VE,
                                               const at::Tensor& targets_N, bool mean, double z_loss,
                                               double label_smoothing) {
  return LinearCrossEntropyOnCuda::apply(x_NE, weight_VE, targets_N, mean, z_loss, label_smoothing,
                                         at::GradMode::is_enabled());
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) { library.impl("linear_cross_entropy", linear_cross_entropy_forward_only); }
TORCH_LIBRARY_IMPL(fsdp, AutogradCUDA, library) {
  library.impl("linear_cross_entropy", linear_cross_entropy_differentiable);
}

}  // namespace fsdp::kernels::cuda
