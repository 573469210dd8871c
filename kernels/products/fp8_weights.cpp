#include "kernels/products/fp8_weights.h"

#include "kernels/base/tensor_table.h"

namespace fsdp::kernels {
namespace {

TensorTable<Fp8Recipe>& marked_weights() {
  static auto* weights = new TensorTable<Fp8Recipe>;  // tensors may outlive every static
  return *weights;
}

struct Fixed {};

TensorTable<Fixed>& fixed_weights() {
  static auto* weights = new TensorTable<Fixed>;
  return *weights;
}

}  // namespace

void fix_fp8(const at::Tensor& weight) { fixed_weights().set(weight, {}); }

bool is_fp8_fixed(const at::Tensor& weight) { return fixed_weights().find(weight).has_value(); }

void set_fp8(const at::Tensor& weight, std::optional<Fp8Recipe> recipe) {
  recipe ? marked_weights().set(weight, *recipe) : marked_weights().erase(weight);
}

bool any_fp8_weight() { return marked_weights().has_any(); }

std::optional<Fp8Recipe> fp8_recipe_of(const at::Tensor& weight) { return marked_weights().find(weight); }

}  // namespace fsdp::kernels
