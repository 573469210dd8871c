#include "fsdp/parallel/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "fsdp/base/check.h"
#include "kernels/base/once_differentiable.h"

namespace fsdp::parallel {
namespace {

constexpr const char* kLoss = "cross entropy";

// All ranks have all targets, so that what one of them refuses, all refuse.
void check_targets_in_vocab(const at::Tensor& targets, int64_t vocab, int64_t ignored) {
  const at::Tensor dense = targets.contiguous();
  const int64_t* target = dense.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < dense.numel(); ++row) {
    FSDP_CHECK(target[row] == ignored || (target[row] >= 0 && target[row] < vocab),
               "[parallel] cross entropy: target of row ", row, ": got ", target[row], ", expected 0..", vocab - 1,
               " (the vocabulary has ", vocab, " entries) or ", ignored, " to ignore the row.");
  }
}

struct CutCrossEntropy : torch::autograd::Function<CutCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks, int64_t ignored,
                            double z_loss, double label_smoothing) {
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
    std::vector<at::Tensor> parts = {at::Tensor(), of_target};
    if (label_smoothing > 0) parts.push_back(shifted.sum(-1));
    at::Tensor probabilities = shifted.exp();
    parts[0] = probabilities.sum(-1);
    const at::Tensor sums = ranks->sum(at::stack(parts), kLoss);
    // Where a look at the targets would make the host wait, those that no rank has make loss and gradient NaN.
    const int64_t vocab = columns * ranks->size();
    if (!targets.is_cpu()) {
      const at::Tensor is_bad = targets.lt(0).logical_or_(targets.ge(vocab)).logical_and_(is_ignored.logical_not());
      sums[0].masked_fill_(is_bad, std::numeric_limits<double>::quiet_NaN());
    }
    probabilities.div_(sums[0].unsqueeze(-1));
    const at::Tensor log_sum = sums[0].log();
    at::Tensor loss = log_sum - sums[1];
    const double share = label_smoothing / static_cast<double>(vocab);  // of each entry
    if (label_smoothing > 0) loss = (1 - label_smoothing) * loss + label_smoothing * log_sum - share * sums[2];
    if (z_loss > 0) {
      const at::Tensor whole_log_sum = log_sum + largest;
      loss = loss + z_loss * whole_log_sum.square();
      probabilities.mul_((1 + 2 * z_loss * whole_log_sum).unsqueeze(-1));
    }
    context->save_for_backward({probabilities, column, is_here, is_ignored});
    context->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    context->saved_data["smoothing"] = label_smoothing;
    context->saved_data["share"] = share;
    return loss.masked_fill_(is_ignored, 0);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor grad = grads[0].masked_fill(saved[3], 0).unsqueeze(-1);
    at::Tensor result = saved[0] * grad;
    if (smoothing > 0) result.sub_(grad, context->saved_data["share"].toDouble());
    result.scatter_add_(-1, saved[1], -(1 - smoothing) * grad * saved[2].unsqueeze(-1));
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    return kernels::once_differentiable(
        "vocab_cross_entropy", "torch::cross_entropy_loss of whole logits", grads,
        {result.to(type), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()});
  }
};

}  // namespace

at::Tensor vocab_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks,
                               int64_t ignored, const VocabLossTerms& terms) {
  FSDP_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0) &&
                 targets.scalar_type() == at::kLong,
             "[parallel] cross entropy: got logits ", logits.sizes(), " and targets ", targets.sizes(), " of ",
             targets.scalar_type(), ", expected [T, V/N] and [T] of Long. Flatten batch and tokens.");
  FSDP_CHECK(terms.z_loss >= 0 && terms.label_smoothing >= 0 && terms.label_smoothing < 1,
             "[parallel] cross entropy: got z_loss ", terms.z_loss, " and label_smoothing ", terms.label_smoothing,
             ", expected at least 0, and 0 up to 1 without it.");
  if (targets.is_cpu()) check_targets_in_vocab(targets, logits.size(1) * ranks->size(), ignored);
  return CutCrossEntropy::apply(logits, targets, ranks, ignored, terms.z_loss, terms.label_smoothing);
}

}  // namespace fsdp::parallel
