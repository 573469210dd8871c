#include "fsdp/parallel/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fsdp/base/check.h"

namespace fsdp::parallel {
namespace {

constexpr const char* kLoss = "cross entropy";

struct CutCrossEntropy : torch::autograd::Function<CutCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks, int64_t ignored) {
    const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor x = logits.to(type);
    const at::Tensor largest = ranks->gather(x.amax(-1).unsqueeze(0), 0, kLoss).amax(0);
    const at::Tensor shifted = x - largest.unsqueeze(-1);
    const int64_t columns = logits.size(-1);
    const at::Tensor local = targets - ranks->rank() * columns;
    const at::Tensor is_ignored = targets.eq(ignored);
    const at::Tensor is_here = local.ge(0).logical_and_(local.lt(columns)).logical_and_(is_ignored.logical_not());
    const at::Tensor column = local.masked_fill(is_here.logical_not(), 0).unsqueeze(-1);
    const at::Tensor of_target = shifted.gather(-1, column).squeeze(-1) * is_here;
    at::Tensor probabilities = shifted.exp();
    const at::Tensor sums = ranks->sum(at::stack({probabilities.sum(-1), of_target}), kLoss);
    probabilities.div_(sums[0].unsqueeze(-1));
    context->save_for_backward({probabilities, column, is_here, is_ignored});
    context->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    return (sums[0].log() - sums[1]).masked_fill_(is_ignored, 0);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor grad = grads[0].masked_fill(saved[3], 0).unsqueeze(-1);
    at::Tensor result = saved[0] * grad;
    result.scatter_add_(-1, saved[1], -grad * saved[2].unsqueeze(-1));
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    return {result.to(type), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks,
                               int64_t ignored) {
  FSDP_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0) &&
                 targets.scalar_type() == at::kLong,
             "[parallel] cross entropy: got logits ", logits.sizes(), " and targets ", targets.sizes(), " of ",
             targets.scalar_type(), ", expected [T, V/N] and [T] of Long. Flatten batch and tokens.");
  return CutCrossEntropy::apply(logits, targets, ranks, ignored);
}

}  // namespace fsdp::parallel
