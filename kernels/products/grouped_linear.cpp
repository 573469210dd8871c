#include "kernels/products/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

#include "kernels/base/once_differentiable.h"
#include "kernels/products/linear.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kGroupedGranule = 8;  // numbers of bf16 in the 16 bytes to which its rows are aligned

void check_groups(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights) {
  TORCH_CHECK(x.dim() == 2 && weights.dim() == 3 && x.size(1) == weights.size(2), "[grouped_linear] got x ", x.sizes(),
              " and weights ", weights.sizes(), ", expected x [rows, in] and weights [experts, out, in].");
  TORCH_CHECK(static_cast<int64_t>(rows.size()) == weights.size(0), "[grouped_linear] got rows of ", rows.size(),
              " experts, expected ", weights.size(0), ".");
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK(sum == x.size(0), "[grouped_linear] got ", x.size(0), " rows, expected ", sum, ", those of all experts.");
}

// Where each expert's rows end, on x's device.
at::Tensor ends_of(const std::vector<int64_t>& rows, const at::Tensor& x) {
  std::vector<int32_t> ends(rows.size());
  std::inclusive_scan(rows.begin(), rows.end(), ends.begin());
  return at::tensor(ends, at::kInt).to(x.device());
}

at::Tensor gradient_of_weights(const at::Tensor& grad_RN, const at::Tensor& x_RK, const at::Tensor& ends,
                               const std::vector<int64_t>& rows) {
  const at::Tensor gradient_XNK = at::_grouped_mm(grad_RN.t(), x_RK, ends);
  // A sum over no rows: not every kernel writes one.
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == 0) gradient_XNK.select(0, static_cast<int64_t>(i)).zero_();
  }
  return gradient_XNK;
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_RK,
                            const std::vector<int64_t>& rows, const at::Tensor& weights_XNK) {
    const at::Tensor ends = ends_of(rows, x_RK);
    context->saved_data["rows"] = rows;
    context->save_for_backward({weights_XNK.requires_grad() ? x_RK : at::Tensor(), weights_XNK, ends});
    return at::_grouped_mm(x_RK, weights_XNK.transpose(1, 2), ends);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor grad_RN = grads[0].contiguous();
    torch::autograd::variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = at::_grouped_mm(grad_RN, saved[1], saved[2]);
    if (context->needs_input_grad(1))
      result[2] = gradient_of_weights(grad_RN, saved[0], saved[2], context->saved_data["rows"].toIntVector());
    return once_differentiable("grouped_linear", "torch::linear of each expert", grads, std::move(result));
  }
};

bool suits_grouped_product(const at::Tensor& x, const at::Tensor& weights) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 && x.size(0) > 0 &&
         weights.size(1) % kGroupedGranule == 0 && weights.size(2) % kGroupedGranule == 0;
}

}  // namespace

at::Tensor grouped_linear_at_once(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights) {
  check_groups(x, rows, weights);
  return GroupedLinear::apply(x.contiguous(), rows, weights.contiguous());
}

at::Tensor grouped_linear(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights) {
  check_groups(x, rows, weights);
  if (suits_grouped_product(x, weights)) return grouped_linear_at_once(x, rows, weights);
  const std::vector<at::Tensor> x_of = x.split_with_sizes(rows, 0), weight_of = weights.unbind(0);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > 0) {
      results.push_back(kernels::linear(x_of[i], weight_of[i]));
    } else if (at::GradMode::is_enabled()) {
      results.push_back(at::linear(x_of[i], weight_of[i]));  // stands in the graph, so that the weight gets a gradient
    }
  }
  return results.empty() ? x.new_empty({0, weights.size(1)}) : at::cat(results);
}

}  // namespace fsdp::kernels
