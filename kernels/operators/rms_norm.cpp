#include "kernels/operators/rms_norm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/raw/rows/rms_norm.h"

namespace fsdp::kernels {
namespace {

template <class T>
raw::RmsNormForward<T> some_rows(raw::RmsNormForward<T> all, int64_t begin, int64_t end) {
  const int64_t offset = begin * all.width;
  all.x += offset;
  if (all.residual) {
    all.residual += offset;
    all.sum += offset;
  }
  all.y += offset;
  all.rstd += begin;
  all.rows = end - begin;
  return all;
}

// {sum, y, rstd}; without a residual sum is undefined.
std::tuple<at::Tensor, at::Tensor, at::Tensor> run_forward(const at::Tensor& x, const at::Tensor& residual,
                                                           const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  if (is_half_on_cpu(x)) {
    const auto [sum, y, rstd] = run_forward(widened(x), widened(residual), widened(weight), eps);
    return {narrowed(sum), narrowed(y), rstd};
  }
  const at::Tensor input = x.contiguous(), scale = weight.contiguous();
  const at::Tensor other = residual.defined() ? residual.contiguous() : residual;
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor sum, y = at::empty(input.sizes(), input.options());
  if (other.defined()) sum = at::empty(input.sizes(), input.options());
  at::Tensor rstd = at::empty({rows}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm", x, [&](auto zero) {
    using T = decltype(zero);
    const raw::RmsNormForward<Raw<T>> all{raw_data(input.const_data_ptr<T>()),
                                          other.defined() ? raw_data(other.const_data_ptr<T>()) : nullptr,
                                          raw_data(scale.const_data_ptr<T>()),
                                          sum.defined() ? raw_data(sum.mutable_data_ptr<T>()) : nullptr,
                                          raw_data(y.mutable_data_ptr<T>()),
                                          rstd.mutable_data_ptr<float>(),
                                          rows,
                                          width,
                                          static_cast<float>(eps)};
    parallel_for(0, rows, rows_per_task(width),
                 [&](int64_t begin, int64_t end) { raw::rms_norm(some_rows(all, begin, end)); });
  });
  return {sum, y, rstd};
}

// Rows are cut into at most 32 pieces whatever the number of threads, each with its own sum for the weight's gradient:
// the result does not depend on the number of threads. `grad_sum` may be undefined.
std::tuple<at::Tensor, at::Tensor> run_backward(const at::Tensor& grad_y, const at::Tensor& grad_sum,
                                                const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  check_rms_norm(x, weight);
  if (is_half_on_cpu(x)) {
    const auto [grad_x, grad_weight] =
        run_backward(widened(grad_y), widened(grad_sum), widened(x), widened(weight), rstd);
    return {narrowed(grad_x), narrowed(grad_weight)};
  }
  const at::Tensor grad = grad_y.contiguous(), input = x.contiguous(), scale = weight.contiguous();
  const at::Tensor more = grad_sum.defined() ? grad_sum.contiguous() : grad_sum;
  const int64_t width = x.size(-1), rows = rstd.numel();
  const int64_t piece = std::max<int64_t>(16, (rows + 31) / 32), pieces = (rows + piece - 1) / piece;
  at::Tensor grad_x = at::empty(input.sizes(), input.options());
  at::Tensor partial = at::zeros({pieces, width}, input.options().dtype(at::kFloat));
  dispatch_dtype("rms_norm_backward", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i * piece, offset = row * width;
        raw::rms_norm_backward(raw::RmsNormBackward<Raw<T>>{
            raw_data(grad.const_data_ptr<T>()) + offset,
            more.defined() ? raw_data(more.const_data_ptr<T>()) + offset : nullptr,
            raw_data(input.const_data_ptr<T>()) + offset, raw_data(scale.const_data_ptr<T>()),
            rstd.const_data_ptr<float>() + row, raw_data(grad_x.mutable_data_ptr<T>()) + offset,
            partial.mutable_data_ptr<float>() + i * width, std::min(piece, rows - row), width});
      }
    });
  });
  return {grad_x, partial.sum(0).to(weight.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = run_forward(x, {}, weight, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                                         const at::Tensor& weight, const at::Tensor& rstd) {
  return run_backward(grad_y, {}, x, weight, rstd);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& residual,
                                                                        const at::Tensor& weight, double eps) {
  check_residual(x, residual);
  return run_forward(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward_cpu(const at::Tensor& grad_y,
                                                             const std::optional<at::Tensor>& grad_sum,
                                                             const at::Tensor& sum, const at::Tensor& weight,
                                                             const at::Tensor& rstd) {
  return run_backward(grad_y, grad_sum.value_or(at::Tensor()), sum, weight, rstd);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    static const auto op =
        find_operator<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double)>(
            "fsdp::rms_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    auto [y, rstd] = op.call(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>("fsdp::rms_norm_backward");
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] = op.call(grads[0], saved[0], saved[1], saved[2]);
    return once_differentiable("rms_norm", "torch::rms_norm", grads, {grad_x, grad_weight, at::Tensor()});
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& residual, const at::Tensor& weight, double eps) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("fsdp::add_rms_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    auto [sum, y, rstd] = op.call(x, residual, weight, eps);
    context->save_for_backward({sum, weight, rstd});
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
        "fsdp::add_rms_norm_backward");
    if (!grads[1].defined()) return {grads[0], grads[0], at::Tensor(), at::Tensor()};
    const auto saved = context->get_saved_variables();
    const auto grad_sum = grads[0].defined() ? std::optional(grads[0]) : std::nullopt;
    auto [grad, grad_weight] = op.call(grads[1], grad_sum, saved[0], saved[1], saved[2]);
    return once_differentiable("add_rms_norm", "torch::rms_norm", grads, {grad, grad, grad_weight, at::Tensor()});
  }
};

at::Tensor rms_norm_without_gradient(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(rms_norm_forward_cpu(x, weight, eps));
}

at::Tensor differentiable_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_without_gradient(const at::Tensor& x, const at::Tensor& residual,
                                                                 const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = add_rms_norm_forward_cpu(x, residual, weight, eps);
  return {sum, y};
}

std::tuple<at::Tensor, at::Tensor> differentiable_add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                               const at::Tensor& weight, double eps) {
  const auto results = AddRmsNorm::apply(x, residual, weight, eps);
  return {results[0], results[1]};
}

}  // namespace

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
              "[rms_norm] x [..., H] and weight [H] needed: got x ", x.sizes(), " and weight ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "[rms_norm] x is ", x.scalar_type(), " and weight is ",
              weight.scalar_type(), ": cast one of them");
}

void check_residual(const at::Tensor& x, const at::Tensor& residual) {
  TORCH_CHECK(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type(), "[add_rms_norm] got x ",
              x.sizes(), " ", x.scalar_type(), " and a residual ", residual.sizes(), " ", residual.scalar_type(),
              ", expected the same of both");
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("fsdp::rms_norm");
  return op.call(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps) {
  static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("fsdp::add_rms_norm");
  auto [sum, y] = op.call(x, residual, weight, eps);
  return {sum, y};
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)");
  library.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("add_rms_norm_forward(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)");
  library.def(
      "add_rms_norm_backward(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor weight, Tensor rstd) -> (Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("rms_norm", rms_norm_without_gradient);
  library.impl("rms_norm_forward", rms_norm_forward_cpu);
  library.impl("rms_norm_backward", rms_norm_backward_cpu);
  library.impl("add_rms_norm", add_rms_norm_without_gradient);
  library.impl("add_rms_norm_forward", add_rms_norm_forward_cpu);
  library.impl("add_rms_norm_backward", add_rms_norm_backward_cpu);
}

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("rms_norm", differentiable_rms_norm);
  library.impl("add_rms_norm", differentiable_add_rms_norm);
}

}  // namespace fsdp::kernels
