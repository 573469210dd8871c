#include "models/linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"
#include "kernels/products/nf4/nf4_linear.h"

namespace fsdp::models {
namespace {

std::vector<at::Tensor> weights_of(std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> weights;
  for (const Linear& map : maps) weights.push_back(map->weight);
  return weights;
}

}  // namespace

at::Tensor LinearImpl::product(const at::Tensor& x) {
  if (!is_nf4()) return kernels::linear(x, weight);
  if (at::GradMode::is_enabled()) return kernels::nf4_linear(x, codes_, out_);
  return kernels::linear(x, kernels::decode_nf4(codes_, out_, x.size(-1), x.scalar_type()));  // as RowwiseScope says
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return complete(product(x), x); }

at::Tensor LinearImpl::complete(at::Tensor y, const at::Tensor& x) {
  if (has_magnitude() || served_) {  // which may scale what the bias is added to
    y = add_adapted(std::move(y), x);
    return bias.defined() ? y.add_(bias) : y;
  }
  if (bias.defined()) y.add_(bias);
  return add_adapted(std::move(y), x);
}

at::Tensor LinearImpl::without_bias(const at::Tensor& x) { return add_adapted(product(x), x); }

at::Tensor LinearImpl::add_adapted(at::Tensor y, const at::Tensor& x) {
  if (served_) served_->apply(y, x);
  if (!lora_a_) return y;
  const at::Tensor input = adapter_.dropout > 0 && is_training() ? at::dropout(x, adapter_.dropout, /*train=*/true) : x;
  if (has_magnitude()) return add_with_magnitude(y, x, input);
  return y.add_(lora_b_->forward(lora_a_->forward(input)), adapter_.scale);
}

// y + g y, not (1 + g) y: in bf16 a factor near 1 has three digits, and g begins as exactly 0.
at::Tensor LinearImpl::add_with_magnitude(const at::Tensor& y, const at::Tensor& x, const at::Tensor& input) {
  const at::Tensor added = lora_b_->forward(lora_a_->forward(input));
  const at::Tensor gain = magnitude_gain(y.scalar_type());
  if (input.is_same(x)) {
    y.add_(added, adapter_.scale);
    return at::addcmul(y, y, gain);
  }
  const at::Tensor seen = product(input).add_(added, adapter_.scale);
  return at::addcmul(y.add_(added, adapter_.scale), seen, gain);
}

namespace {

at::Tensor norms_of_rows(const at::Tensor& weight) {
  return at::linalg_vector_norm(weight, 2, at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat);
}

}  // namespace

at::Tensor LinearImpl::whole_weight(at::ScalarType type) const {
  return is_nf4() ? kernels::decode_nf4(codes_, out_, in_, type) : weight;
}

at::Tensor LinearImpl::row_norms() {
  const at::NoGradGuard no_grad;
  return norms_of_rows(whole_weight());
}

// |W + s B A|^2 = |W|^2 + 2 s W A^T B^T + s^2 B A A^T B^T, row by row: no matrix but W is ever whole.
at::Tensor LinearImpl::magnitude_gain(at::ScalarType type) {
  at::Tensor of_base, of_sum;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor a = lora_a_->weight, b = lora_b_->weight.to(at::kFloat);
    const at::Tensor base = whole_weight(a.scalar_type());
    of_base = norms_of_rows(base);
    const at::Tensor wide = a.to(at::kFloat);
    const at::Tensor both = at::matmul(base, a.to(base.scalar_type()).t()).to(at::kFloat).mul_(2);  // [out, rank]
    const at::Tensor change = both.add_(at::matmul(b, at::matmul(wide, wide.t())), adapter_.scale).mul_(b).sum(1);
    of_sum = of_base.square().add_(change, adapter_.scale).clamp_min_(0).sqrt_();
    of_sum = at::where(change == 0, of_base, of_sum).clamp_min_(std::numeric_limits<float>::min());
  }
  return ((of_base - of_sum) + offset_.to(at::kFloat)).div(of_sum).to(type);
}

std::vector<at::Tensor> project(const at::Tensor& x, Projections how, std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> results;
  const bool any_nf4 = std::any_of(maps.begin(), maps.end(), [](const Linear& map) { return map->is_nf4(); });
  if (how == Projections::kSeparate || any_nf4) {
    for (Linear map : maps) results.push_back(map(x));
    return results;
  }
  results = kernels::fused_linear(x, weights_of(maps));
  auto result = results.begin();
  for (Linear map : maps) {
    *result = map->complete(std::move(*result), x);
    ++result;
  }
  return results;
}

bool lie_side_by_side(std::initializer_list<Linear> maps) {
  const bool any_nf4 = std::any_of(maps.begin(), maps.end(), [](const Linear& map) { return map->is_nf4(); });
  return !any_nf4 && kernels::lie_side_by_side(weights_of(maps));
}

void LinearImpl::keep_as_nf4() {
  TORCH_CHECK(!is_nf4(), "[nf4] this linear map keeps its weight as NF4 already");
  parameters_.erase("weight");
  weight = at::Tensor();
  const at::Tensor bytes = torch::zeros({kernels::nf4_bytes(out_ * in_)}, at::TensorOptions().dtype(at::kByte));
  codes_ = register_parameter("weight_nf4", bytes, /*requires_grad=*/false);
}

void LinearImpl::add_adapter(const AdapterShape& shape, const at::TensorOptions& options) {
  TORCH_CHECK(!lora_a_, "[lora] this linear map has an adapter already");
  adapter_ = shape;
  lora_a_ = register_module("lora_A", std::make_shared<LinearImpl>(in_, shape.rank, options));
  lora_b_ = register_module("lora_B", std::make_shared<LinearImpl>(shape.rank, out_, options));
  if (shape.kind == AdapterKind::kDora)
    offset_ = register_parameter("lora_magnitude_offset", torch::empty({out_}, options));
}

}  // namespace fsdp::models
