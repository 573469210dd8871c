#include "fsdp/precision/fp8_wire.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp/base/check.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/fp8_weights.h"

namespace fsdp {
namespace {

using kernels::raw_data;
using kernels::raw::Fp8Matrix;

// Calls body(values) with a pointer to fp32 or bf16 numbers, as `main` [n] is computed with.
template <class Body>
void with_values(const at::Tensor& main, at::ScalarType compute, const Body& body) {
  const at::Tensor values = main.detach().to(compute).contiguous();
  if (compute == at::kFloat) return body(values.const_data_ptr<float>());
  body(raw_data(values.const_data_ptr<at::BFloat16>()));
}

}  // namespace

Fp8Wire::Fp8Wire(const std::vector<Weight>& weights, at::ScalarType compute) : compute_(compute) {
  for (const Weight& weight : weights) {
    const int64_t block = kernels::weight_block(weight.recipe);
    const Fp8Matrix shape{
        weight.rows, weight.columns,
        block == 0 ? kernels::raw::Fp8Block{weight.rows, weight.columns} : kernels::raw::Fp8Block{block, block}};
    matrices_.push_back({weight.offset, num_blocks_, shape});
    num_blocks_ += shape.num_blocks();
  }
  codes_ = at::zeros({num_blocks_}, at::kByte);
}

std::vector<Fp8Wire::Part> Fp8Wire::parts_of(int64_t begin, int64_t numel) const {
  std::vector<Part> parts;
  for (const Matrix& matrix : matrices_) {
    const int64_t first = std::max(begin, matrix.offset);
    const int64_t end = std::min(begin + numel, matrix.offset + matrix.shape.rows * matrix.shape.columns);
    if (first < end) parts.push_back({{matrix.shape, first - matrix.offset, end - first}, first - begin, matrix.codes});
  }
  return parts;
}

at::Tensor Fp8Wire::codes_of(const at::Tensor& main, int64_t begin) const {
  at::Tensor codes = at::zeros({num_blocks_}, at::kByte);
  auto* code = codes.mutable_data_ptr<uint8_t>();
  with_values(main, compute_, [&](const auto* values) {
    for (const Part& part : parts_of(begin, main.numel()))
      kernels::raw::raise_fp8_codes(values + part.at, part.range, code + part.codes);
  });
  return codes;
}

void Fp8Wire::encode(const at::Tensor& main, int64_t begin, const at::Tensor& bytes) const {
  auto* out = bytes.mutable_data_ptr<uint8_t>();
  const auto* code = codes_.const_data_ptr<uint8_t>();
  with_values(main, compute_, [&](const auto* values) {
    for (const Part& part : parts_of(begin, main.numel()))
      kernels::raw::to_fp8_bytes(values + part.at, part.range, code + part.codes, out + part.at);
  });
}

Fp8Wire::Decode Fp8Wire::decoder(const at::Tensor& bytes, int64_t begin, const at::Tensor& out) const {
  return [parts = parts_of(begin, bytes.numel()), codes = codes_, bytes, out] {
    const auto* from = bytes.const_data_ptr<uint8_t>();
    const auto* code = codes.const_data_ptr<uint8_t>();
    for (const Part& part : parts) {
      if (out.scalar_type() == at::kFloat) {
        kernels::raw::from_fp8_bytes(from + part.at, part.range, code + part.codes,
                                     out.mutable_data_ptr<float>() + part.at);
      } else {
        kernels::raw::from_fp8_bytes(from + part.at, part.range, code + part.codes,
                                     raw_data(out.mutable_data_ptr<at::BFloat16>()) + part.at);
      }
    }
  };
}

at::Tensor Fp8Wire::rounded(const at::Tensor& main, int64_t begin) const {
  const at::Tensor bytes = at::zeros({main.numel()}, at::kByte);
  const at::Tensor out = at::zeros({main.numel()}, at::TensorOptions().dtype(compute_));
  encode(main, begin, bytes);
  decoder(bytes, begin, out)();
  return out;
}

std::optional<kernels::Fp8Recipe> wire_recipe_of(const at::Tensor& weight, const std::string& name,
                                                 at::ScalarType compute) {
  const auto recipe = kernels::fp8_recipe_of(weight);
  if (!recipe) return std::nullopt;
  FSDP_CHECK(kernels::has_one_weight(*recipe), "[fully_shard] Precision::gather: got kFloat8_e4m3fn for '", name,
             "' of recipe ", kernels::name(*recipe), ", whose forward and backward round a weight along different ",
             "dimensions, expected tensorwise or blockwise. Choose one of them in fsdp::fp8(), or leave gather unset.");
  FSDP_CHECK(compute == at::kFloat || compute == at::kBFloat16, "[fully_shard] Precision::gather: got kFloat8_e4m3fn ",
             "for '", name, "', which is computed with in ", compute, ", expected fp32 or bf16.");
  return recipe;
}

void fix_recipe_of(const at::Tensor& weight) { kernels::fix_fp8(weight); }

}  // namespace fsdp
