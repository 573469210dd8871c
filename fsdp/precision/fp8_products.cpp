#include "fsdp/precision/fp8_products.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/base/libtorch_version.h"
#include "kernels/products/fp8_linear.h"
#include "kernels/products/fp8_weights.h"

namespace fsdp {
namespace {

enum class Sides { kAsItIs, kTransposed };

struct MarkedWeight {
  at::Tensor weight;  // [out, in]
  kernels::Fp8Recipe recipe;
};

bool transposes(const at::Tensor& view, const at::Tensor& base) {
  return base.dim() == 2 && view.dim() == 2 && view.size(0) == base.size(1) && view.size(1) == base.size(0) &&
         view.stride(0) == base.stride(1) && view.stride(1) == base.stride(0) &&
         view.storage_offset() == base.storage_offset();
}

// A leaf that `tensor` was made of by casts alone, and by one transposition if `sides` says so: autocast's copies.
std::optional<MarkedWeight> find_origin(const at::Tensor& tensor, Sides sides) {
  int transpositions = 0;
  libtorch::NodePtr node = tensor.grad_fn();
  while (node != nullptr) {
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get())) {
      const auto recipe = kernels::fp8_recipe_of(leaf->variable);
      if (!recipe || transpositions != (sides == Sides::kTransposed ? 1 : 0)) return std::nullopt;
      return MarkedWeight{sides == Sides::kTransposed ? tensor.t() : tensor, *recipe};
    }
    const std::string name = node->name();
    if (name == "TBackward0") ++transpositions;
    if ((name != "TBackward0" && name != "ToCopyBackward0") || node->num_outputs() != 1) return std::nullopt;
    node = node->next_edge(0).function;
  }
  return std::nullopt;
}

// The weight that a product's second factor is, or is the transposition of.
std::optional<MarkedWeight> find_weight(const at::Tensor& factor, Sides sides) {
  if (!kernels::any_fp8_weight()) return std::nullopt;
  if (sides == Sides::kAsItIs) {
    if (const auto recipe = kernels::fp8_recipe_of(factor)) return MarkedWeight{factor, *recipe};
  } else if (factor.is_view()) {
    const at::Tensor base(factor._base());
    if (const auto recipe = kernels::fp8_recipe_of(base); recipe && transposes(factor, base))
      return MarkedWeight{base, *recipe};
  }
  return find_origin(factor, sides);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const auto marked = find_weight(weight, Sides::kAsItIs);
  if (!marked) return at::native::linear(x, weight, bias);
  const at::Tensor y = kernels::fp8_linear(x, marked->weight, marked->recipe);
  return bias && bias->defined() ? y + *bias : y;
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& factor) {
  const auto marked = find_weight(factor, Sides::kTransposed);
  return marked ? kernels::fp8_linear(x, marked->weight, marked->recipe) : at::native::matmul(x, factor);
}

// addmm is no composite of other operators: LibTorch's kernel for `key` is kept, to be called for everything else.
class WatchedAddmm {
 public:
  explicit WatchedAddmm(c10::DispatchKey key)
      : op_(c10::Dispatcher::singleton().findSchemaOrThrow("aten::addmm", "")),
        original_(op_.getComputedKernelForDispatchKey(key)) {}

  at::Tensor operator()(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& x, const at::Tensor& factor,
                        const at::Scalar& beta, const at::Scalar& alpha) const {
    if (const auto marked = find_weight(factor, Sides::kTransposed)) {
      const at::Tensor y = kernels::fp8_linear(x, marked->weight, marked->recipe);
      return beta.equal(1) && alpha.equal(1) ? y + self : self * beta + y * alpha;
    }
    torch::jit::Stack stack = {self, x, factor, beta, alpha};
    original_.callBoxed(op_, keys, &stack);
    return stack.at(0).toTensor();
  }

 private:
  c10::OperatorHandle op_;
  c10::SafeKernelFunction original_;
};

// LibTorch warns of a kernel that takes another's place, which is what is wanted here.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::vector<torch::Library>* watch() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  auto* libraries = new std::vector<torch::Library>;
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    torch::Library library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library.impl("linear", linear);
    library.impl("matmul", matmul);
    library.impl("addmm", WatchedAddmm(key));
    libraries->push_back(std::move(library));
  }
  return libraries;
}

}  // namespace

void watch_products() { [[maybe_unused]] static const auto* libraries = watch(); }

}  // namespace fsdp
