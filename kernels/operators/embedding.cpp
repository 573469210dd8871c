#include "kernels/operators/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/gradient_slot.h"
#include "kernels/base/half.h"
#include "kernels/base/input_checks.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/raw/flat/pack.h"

namespace fsdp::kernels {
namespace {

void check_ids(const at::Tensor& weight, const at::Tensor& ids) {
  if (ids.numel() == 0) return;
  const auto [least, most] = at::aminmax(ids);
  TORCH_CHECK_INDEX(least.item<int64_t>() >= 0 && most.item<int64_t>() < weight.size(0), "[embedding] got ids from ",
                    least.item<int64_t>(), " to ", most.item<int64_t>(), ", expected 0..", weight.size(0) - 1,
                    " (the table has ", weight.size(0), " rows)");
}

at::Tensor select_rows(const at::Tensor& weight, const at::Tensor& ids) {
  check_embedding(weight, ids);
  check_ids(weight, ids);
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  return weight.index_select(0, ids.reshape({-1})).view(sizes);
}

void fill(const GradientSlot& slot, const at::Tensor& grad_NE, const at::Tensor& ids_N) {
  static const auto on_device =
      find_operator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, bool)>(
          "fsdp::fill_embedding_gradient");
  if (!grad_NE.is_cpu()) return on_device.call(slot.target, grad_NE, ids_N, slot.scale, slot.adds);
  if (is_half_on_cpu(grad_NE)) return fill(slot, widened(grad_NE), ids_N);
  if (!slot.adds) at::Tensor(slot.target).zero_();
  float* table = slot.target.mutable_data_ptr<float>();
  const int64_t* id = ids_N.const_data_ptr<int64_t>();
  const int64_t width = grad_NE.size(1);
  dispatch_dtype("embedding_backward", grad_NE, [&](auto zero) {
    const auto* rows = raw_data(grad_NE.const_data_ptr<decltype(zero)>());
    for (int64_t i = 0; i < ids_N.numel(); ++i)
      raw::add_scaled(table + id[i] * width, rows + i * width, static_cast<float>(slot.scale), width);
  });
}

// In fp32, at the speed of LibTorch's sums in bf16.
at::Tensor sum_bf16_rows(const at::Tensor& grad_NE, const at::Tensor& ids_N, int64_t num_rows) {
  const int64_t width = grad_NE.size(1);
  at::Tensor all = at::zeros({num_rows, width}, grad_NE.options());
  raw::Bf16* const table = raw_data(all.mutable_data_ptr<at::BFloat16>());
  const raw::Bf16* const rows = raw_data(grad_NE.const_data_ptr<at::BFloat16>());
  const int64_t* const id = ids_N.const_data_ptr<int64_t>();
  std::vector<int64_t> tokens(static_cast<size_t>(ids_N.numel()));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::stable_sort(tokens.begin(), tokens.end(), [id](int64_t a, int64_t b) { return id[a] < id[b]; });
  std::vector<float> sum(static_cast<size_t>(width));
  for (auto first = tokens.begin(); first != tokens.end();) {
    const auto end = std::find_if(first, tokens.end(), [&](int64_t token) { return id[token] != id[*first]; });
    raw::Bf16* const to = table + id[*first] * width;
    if (std::next(first) == end) {  // as most are
      std::copy_n(rows + *first++ * width, width, to);
      continue;
    }
    raw::scale_to(sum.data(), rows + *first * width, 1, width);
    while (++first != end) raw::add_scaled(sum.data(), rows + *first * width, 1, width);
    std::transform(sum.begin(), sum.end(), to, raw::from_float<raw::Bf16>);
  }
  return all;
}

at::Tensor dense_gradient(const at::Tensor& grad_NE, const at::Tensor& ids_N, int64_t num_rows) {
  static const auto on_device =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>("fsdp::embedding_backward");
  // Ours on a device cannot be differentiated once more.
  if (!grad_NE.is_cpu() && !at::GradMode::is_enabled()) return on_device.call(grad_NE, ids_N, num_rows);
  const auto type = grad_NE.scalar_type();
  if (grad_NE.is_cpu() && type == at::kBFloat16 && !at::GradMode::is_enabled())
    return sum_bf16_rows(grad_NE, ids_N, num_rows);
  // Sums in a narrow type would lose what many tokens add to a row.
  const bool is_narrow = grad_NE.is_cpu() && (type == at::kBFloat16 || type == at::kHalf);
  return at::embedding_dense_backward(is_narrow ? widened(grad_NE) : grad_NE, ids_N, num_rows, /*padding_idx=*/-1,
                                      /*scale_grad_by_freq=*/false)
      .to(type);
}

at::Tensor call_embedding(const at::Tensor& weight, const at::Tensor& ids) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::embedding");
  return op.call(weight, ids);
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids) {
    context->save_for_backward({weight, ids});
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return call_embedding(weight, ids);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor ids_N = saved[1].reshape({-1}).contiguous();
    const at::Tensor grad_NE = grads[0].reshape({ids_N.numel(), weight.size(1)}).contiguous();
    torch::autograd::variable_list result(2);
    const bool suits =
        grad_NE.scalar_type() == at::kFloat || grad_NE.scalar_type() == at::kBFloat16 || is_half_on_cpu(grad_NE);
    if (std::optional<GradientSlot> slot = suits ? find_gradient_slot(weight) : std::nullopt) {
      fill(*slot, grad_NE, ids_N);
      result[0] = std::move(slot->stand_in);
    } else {
      result[0] = dense_gradient(grad_NE, ids_N, weight.size(0));
    }
    return result;
  }
};

at::Tensor differentiable_embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return Embedding::apply(weight, ids);
}

}  // namespace

void check_embedding(const at::Tensor& weight, const at::Tensor& ids) {
  TORCH_CHECK(weight.dim() == 2 && ids.scalar_type() == at::kLong,
              "[embedding] weight [V, E] and int64 ids needed: got ", weight.sizes(), " and ids of ",
              ids.scalar_type());
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) { return call_embedding(weight, ids); }

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("embedding(Tensor weight, Tensor ids) -> Tensor");
  // On devices other than the CPU.
  library.def("embedding_backward(Tensor grad, Tensor ids, int rows) -> Tensor");
  library.def("fill_embedding_gradient(Tensor(a!) target, Tensor grad, Tensor ids, float scale, bool adds) -> ()");
}
TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("embedding", select_rows); }
TORCH_LIBRARY_IMPL(fsdp, Autograd, library) { library.impl("embedding", differentiable_embedding); }

}  // namespace fsdp::kernels
