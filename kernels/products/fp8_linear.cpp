#include "kernels/products/fp8_linear.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <atomic>

#include "kernels/base/dispatch.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/fp8_history.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/linear_parts.h"
#include "kernels/raw/formats/fp8.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kFp8Block = 128;  // of kBlockwise
constexpr int64_t kMxBlock = 32;    // of kMx

bool is_tensorwise(Fp8Recipe recipe) { return recipe == Fp8Recipe::kTensorwise || recipe == Fp8Recipe::kDelayed; }

raw::Fp8Block block_of(Fp8Recipe recipe, Fp8Operand operand, SummedOver summed, int64_t rows, int64_t columns) {
  if (is_tensorwise(recipe)) return {rows, columns};
  if (recipe == Fp8Recipe::kBlockwise && operand == Fp8Operand::kWeight) return {kFp8Block, kFp8Block};
  const bool along_columns = summed == SummedOver::kColumns;
  int64_t length = along_columns ? columns : rows;
  if (recipe == Fp8Recipe::kBlockwise) length = kFp8Block;
  if (recipe == Fp8Recipe::kMx) length = kMxBlock;
  return along_columns ? raw::Fp8Block{1, length} : raw::Fp8Block{length, 1};
}

raw::Fp8Format format_of(Fp8Recipe recipe, Fp8Operand operand) {
  const bool wide = is_tensorwise(recipe) && operand == Fp8Operand::kGradient;
  return wide ? raw::Fp8Format::kE5m2 : raw::Fp8Format::kE4m3;
}

std::atomic<int> broken_steps{0};

// An enum on its way through an operator.
Fp8Recipe recipe_of(int64_t number) { return static_cast<Fp8Recipe>(number); }

at::Tensor round_factor(const at::Tensor& matrix, const at::Tensor& weight, Fp8Recipe recipe, Fp8Operand operand,
                        SummedOver summed);

at::Tensor fp8_product(const at::Tensor& x, const at::Tensor& weight, int64_t recipe_number) {
  const Fp8Recipe recipe = recipe_of(recipe_number);
  const at::Tensor x_TK = round_factor(x.flatten(0, -2), weight, recipe, Fp8Operand::kActivation, SummedOver::kColumns);
  const at::Tensor weight_NK = round_to_fp8(weight, recipe, Fp8Operand::kWeight, SummedOver::kColumns);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return product(x_TK, weight_NK).view(sizes);
}

// The products of devices that multiply fp8 numbers themselves.
namespace on_device {

at::Tensor gradient_of_x(const at::Tensor& grad_TN, const at::Tensor& weight_NK, Fp8Recipe recipe) {
  return scaled_product(to_fp8_tensor(grad_TN, recipe, Fp8Operand::kGradient),
                        to_fp8_tensor(weight_NK.t(), recipe, Fp8Operand::kWeight), grad_TN.scalar_type());
}

at::Tensor gradient_of_weight(const at::Tensor& weight_NK, const at::Tensor& grad_TN, const at::Tensor& x_TK,
                              Fp8Recipe recipe) {
  std::optional<GradientSlot> slot = find_gradient_slot(weight_NK);
  at::Tensor gradient =
      scaled_product(to_fp8_tensor(grad_TN.t(), recipe, Fp8Operand::kGradient),
                     to_fp8_tensor(x_TK.t(), recipe, Fp8Operand::kActivation), slot ? at::kFloat : x_TK.scalar_type());
  if (!slot) return gradient;
  slot->adds ? slot->target.add_(gradient, slot->scale) : slot->target.copy_(gradient).mul_(slot->scale);
  return std::move(slot->stand_in);
}

}  // namespace on_device

at::Tensor gradient_of_x(const at::Tensor& grad_TN, const at::Tensor& weight_NK, Fp8Recipe recipe) {
  if (!grad_TN.is_cpu()) return on_device::gradient_of_x(grad_TN, weight_NK, recipe);
  return product(round_factor(grad_TN, weight_NK, recipe, Fp8Operand::kGradient, SummedOver::kColumns),
                 round_to_fp8(weight_NK, recipe, Fp8Operand::kWeight, SummedOver::kRows).t());
}

at::Tensor gradient_of_weight(const at::Tensor& weight_NK, const at::Tensor& grad_TN, const at::Tensor& x_TK,
                              Fp8Recipe recipe) {
  if (!grad_TN.is_cpu()) return on_device::gradient_of_weight(weight_NK, grad_TN, x_TK, recipe);
  return weight_gradient(weight_NK, round_factor(grad_TN, weight_NK, recipe, Fp8Operand::kGradient, SummedOver::kRows),
                         round_factor(x_TK, weight_NK, recipe, Fp8Operand::kActivation, SummedOver::kRows));
}

const auto& fp8_operator() {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>("fsdp::fp8_linear");
  return op;
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            int64_t recipe) {
    // A frozen weight needs no gradient, so nobody will ask for x.
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    context->saved_data["recipe"] = recipe;
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return x.is_cpu() ? fp8_product(x, weight, recipe) : fp8_operator().call(x, weight, recipe);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const Fp8Recipe recipe = recipe_of(context->saved_data["recipe"].toInt());
    const at::Tensor grad_TN = grads[0].flatten(0, -2);
    torch::autograd::variable_list result(3);
    if (context->needs_input_grad(0)) {
      std::vector<int64_t> sizes = grads[0].sizes().vec();
      sizes.back() = weight.size(1);
      result[0] = gradient_of_x(grad_TN, weight, recipe).view(sizes);
    }
    if (context->needs_input_grad(1)) result[1] = gradient_of_weight(weight, grad_TN, x.flatten(0, -2), recipe);
    return once_differentiable("fp8_linear", "torch::linear", grads, std::move(result));
  }
};

at::Tensor differentiable_fp8_linear(const at::Tensor& x, const at::Tensor& weight, int64_t recipe) {
  return Fp8Linear::apply(x, weight, recipe);
}

template <class T>
void round_rows(const at::Tensor& matrix, const raw::Fp8Block& block, raw::Fp8Format format, int shift,
                const at::Tensor& out) {
  const auto* from = raw_data(matrix.const_data_ptr<T>());
  auto* to = raw_data(out.mutable_data_ptr<T>());
  const int64_t rows = matrix.size(0), columns = matrix.size(1), bands = (rows + block.rows - 1) / block.rows;
  parallel_for(0, bands, rows_per_task(block.rows * columns), [&](int64_t first, int64_t last) {
    const int64_t row = first * block.rows, end = std::min(rows, last * block.rows);
    raw::round_to_fp8(from + row * columns, end - row, columns, block, format, to + row * columns, nullptr, shift);
  });
}

at::Tensor rounded(const at::Tensor& from, Fp8Recipe recipe, Fp8Operand operand, SummedOver summed, int shift) {
  at::Tensor out = at::empty_like(from);
  if (from.numel() == 0) return out;
  const raw::Fp8Block block = block_of(recipe, operand, summed, from.size(0), from.size(1));
  dispatch_dtype("fp8_linear", from, [&]<class T>(T) {
    round_rows<T>(from, block, format_of(recipe, operand), shift + broken_steps.load(std::memory_order_relaxed), out);
  });
  return out;
}

// How far the scale of earlier steps is from the one that these numbers need, which the history hears of.
int steps_to_history(const at::Tensor& from, const at::Tensor& weight, raw::Fp8Format format, Fp8Operand operand) {
  int needed = 0;
  dispatch_dtype("fp8_linear", from, [&]<class T>(T) {
    needed = raw::fp8_exponent_of(raw_data(from.const_data_ptr<T>()), from.numel(), format);
  });
  constexpr int kBias = 128;
  const auto history = fp8_history_of(weight);
  const Fp8Seen factor = operand == Fp8Operand::kGradient ? Fp8Seen::kGradients : Fp8Seen::kActivations;
  history->see(factor, static_cast<uint8_t>(needed + kBias));
  const int code = history->code(factor);
  return code == 0 || needed == -kBias ? 0 : code - kBias - needed;
}

at::Tensor round_factor(const at::Tensor& matrix, const at::Tensor& weight, Fp8Recipe recipe, Fp8Operand operand,
                        SummedOver summed) {
  if (recipe != Fp8Recipe::kDelayed) return round_to_fp8(matrix, recipe, operand, summed);
  const at::Tensor from = matrix.detach().contiguous();
  return rounded(from, recipe, operand, summed, steps_to_history(from, weight, format_of(recipe, operand), operand));
}

}  // namespace

void break_fp8_scales(int steps) { broken_steps.store(steps, std::memory_order_relaxed); }

at::Tensor round_to_fp8(const at::Tensor& matrix, Fp8Recipe recipe, Fp8Operand operand, SummedOver summed) {
  return rounded(matrix.detach().contiguous(), recipe, operand, summed, /*shift=*/0);
}

at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, Fp8Recipe recipe) {
  TORCH_CHECK(x.device() == weight.device(), "[fp8_linear] got x on ", x.device(), " and a weight on ", weight.device(),
              ", expected both on one device.");
  TORCH_CHECK(x.is_cpu() || has_scaled_product(recipe), "[fp8_linear] got ", name(recipe), " on ", x.device(),
              ", expected tensorwise or rowwise: the others are multiplied on the CPU only in this version.");
  const auto type = weight.scalar_type();
  TORCH_CHECK(x.scalar_type() == type && (type == at::kFloat || type == at::kBFloat16), "[fp8_linear] got x in ",
              x.scalar_type(), " and a weight in ", type, ", expected both in float32 or both in bfloat16.");
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1), "[fp8_linear] got x ", x.sizes(),
              " and a weight ", weight.sizes(), ", expected x [..., in] and a weight [out, in].");
  return x.dim() == 1 ? fp8_operator().call(x.unsqueeze(0), weight, static_cast<int64_t>(recipe)).squeeze(0)
                      : fp8_operator().call(x, weight, static_cast<int64_t>(recipe));
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) { library.def("fp8_linear(Tensor x, Tensor weight, int recipe) -> Tensor"); }

TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("fp8_linear", fp8_product); }

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) { library.impl("fp8_linear", differentiable_fp8_linear); }

}  // namespace fsdp::kernels
