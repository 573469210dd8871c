#include "fsdp/parallel/layers.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "fsdp/base/check.h"
#include "fsdp/group/cut.h"
#include "fsdp/parallel/regions.h"

namespace fsdp::parallel {
namespace {

constexpr int64_t kTokenDim = -2;

LayerPlace place_on(const Mesh& mesh, const std::string& name, Tokens tokens) {
  return {Ranks::along(mesh, "tp"), name, tokens};
}

at::Tensor leave(const at::Tensor& x, const LayerPlace& place) {
  if (place.tokens == Tokens::kAll) return leave_parts(x, place.ranks, place.layer);
  return leave_parts_to_tokens(x, kTokenDim, place.ranks, place.layer);
}

}  // namespace

at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const LayerPlace& place) {
  const auto tokens_dim = place.tokens == Tokens::kOwn ? std::optional(kTokenDim) : std::nullopt;
  const at::Tensor input = enter_parts_together(x, tokens_dim, place.ranks, place.layer);
  return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LayerPlace& place) {
  const at::Tensor y = leave(at::linear(x, weight), place);
  if (!bias.defined()) return y;
  // With tokens of its own a rank sees a part of the bias's gradient.
  return y + (place.tokens == Tokens::kOwn ? enter_parts(bias, place.ranks, place.layer + ".bias") : bias);
}

void cut_parameter(const at::Tensor& parameter, int64_t dim, const Ranks& ranks, const std::string& name) {
  check_divides(parameter.size(dim), ranks.size(), c10::str("along dimension ", dim), name);
  if (ranks.size() == 1) return;
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> sizes = parameter.sizes().vec();
  at::Tensor(parameter).set_data(ranks.own_part(parameter.detach(), dim, name).clone(at::MemoryFormat::Contiguous));
  registry::add_cut(parameter, {dim, sizes, ranks.comm()});
}

ColumnLinearImpl::ColumnLinearImpl(int64_t in, int64_t out, const Mesh& mesh, const LinearOptions& options)
    : place_(place_on(mesh, options.name, options.tokens)) {
  check_divides(out, place_.ranks->size(), "outputs", options.name);
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(options.bias));
  weight = register_parameter("weight", whole->weight);
  cut_parameter(weight, 0, *place_.ranks, options.name + ".weight");
  if (!options.bias) return;
  bias = register_parameter("bias", whole->bias);
  cut_parameter(bias, 0, *place_.ranks, options.name + ".bias");
}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& x) { return column_linear(x, weight, bias, place_); }

RowLinearImpl::RowLinearImpl(int64_t in, int64_t out, const Mesh& mesh, const LinearOptions& options)
    : place_(place_on(mesh, options.name, options.tokens)) {
  check_divides(in, place_.ranks->size(), "inputs", options.name);
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(options.bias));
  weight = register_parameter("weight", whole->weight);
  cut_parameter(weight, 1, *place_.ranks, options.name + ".weight");
  if (options.bias) bias = register_parameter("bias", whole->bias);
}

at::Tensor RowLinearImpl::forward(const at::Tensor& x) { return row_linear(x, weight, bias, place_); }

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) {
  const torch::nn::Linear whole(options);
  weight = register_parameter("weight", whole->weight);
  if (options.bias()) bias = register_parameter("bias", whole->bias);
}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  switch (cut_) {
    case LinearCut::kColumn:
      return column_linear(x, weight, bias, place_);
    case LinearCut::kRow:
      return row_linear(x, weight, bias, place_);
    case LinearCut::kNone:
      break;
  }
  return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

void LinearImpl::cut(LinearCut cut, const LayerPlace& place) {
  FSDP_CHECK(cut_ == LinearCut::kNone, "[parallel] '", place.layer, "' is cut already.");
  cut_parameter(weight, cut == LinearCut::kColumn ? 0 : 1, *place.ranks, place.layer + ".weight");
  if (cut == LinearCut::kColumn && bias.defined()) cut_parameter(bias, 0, *place.ranks, place.layer + ".bias");
  cut_ = cut;
  place_ = place;
}

VocabEmbeddingImpl::VocabEmbeddingImpl(int64_t rows, int64_t width, const Mesh& mesh, const EmbeddingOptions& options)
    : place_(place_on(mesh, options.name, options.tokens)) {
  check_divides(rows, place_.ranks->size(), "rows of the vocabulary", options.name);
  const torch::nn::Embedding whole(rows, width);
  weight = register_parameter("weight", whole->weight);
  cut_parameter(weight, 0, *place_.ranks, options.name + ".weight");
}

at::Tensor VocabEmbeddingImpl::forward(const at::Tensor& ids) {
  if (place_.ranks->size() == 1) return at::embedding(weight, ids);
  const int64_t begin = place_.ranks->rank() * weight.size(0), end = begin + weight.size(0);
  const at::Tensor is_elsewhere = ids.lt(begin).logical_or_(ids.ge(end));
  const at::Tensor rows = at::embedding(weight, (ids - begin).masked_fill_(is_elsewhere, 0));
  return leave(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0), place_);
}

}  // namespace fsdp::parallel
