#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/products/fp8_recipe.h"
#include "kernels/raw/formats/fp8_bytes.h"

namespace fsdp {

// The weights of a group as they travel where Precision::gather is kFloat8_e4m3fn: a byte each, and an exponent for
// each block, which the ranks agree on before. What arrives is what a product of the recipe would have rounded the
// weights to, so that it changes nothing. All elements are counted in the group's flat buffer; between weights there
// may be padding. Methods are local and single-threaded; decode functions may run on another thread.
class Fp8Wire {
 public:
  // One weight [rows, columns] of a recipe for which kernels::has_one_weight().
  struct Weight {
    int64_t offset = 0;
    int64_t rows = 0;
    int64_t columns = 0;
    kernels::Fp8Recipe recipe = kernels::Fp8Recipe::kTensorwise;
  };
  using Decode = std::function<void()>;

  // `compute`: kFloat or kBFloat16, to which main weights are rounded first.
  Fp8Wire(const std::vector<Weight>& weights, at::ScalarType compute);

  // Codes [blocks], kByte, that elements [begin, begin + main.numel()) need; the largest of all ranks' is to be set.
  at::Tensor codes_of(const at::Tensor& main, int64_t begin) const;
  void set_codes(at::Tensor codes) { codes_ = std::move(codes); }
  // main [n], the elements from `begin`, into bytes [n], kByte.
  void encode(const at::Tensor& main, int64_t begin, const at::Tensor& bytes) const;
  // bytes [n], the elements from `begin`, into out [n], of the compute dtype, when it is called; with the codes of now.
  Decode decoder(const at::Tensor& bytes, int64_t begin, const at::Tensor& out) const;
  // What the others get of main [n], in the compute dtype.
  at::Tensor rounded(const at::Tensor& main, int64_t begin) const;

 private:
  struct Part {
    kernels::raw::Fp8Range range;
    int64_t at;     // where it begins among the elements asked for
    int64_t codes;  // of its first block
  };
  struct Matrix {
    int64_t offset;
    int64_t codes;
    kernels::raw::Fp8Matrix shape;
  };
  std::vector<Part> parts_of(int64_t begin, int64_t numel) const;

  std::vector<Matrix> matrices_;
  int64_t num_blocks_ = 0;
  at::ScalarType compute_;
  at::Tensor codes_;
};

// The recipe that `weight` has from fsdp::fp8() if it may travel so; nothing if it has none. Throws Error(kUsage),
// naming it, for one that cannot: recipes whose blocks differ between forward and backward, dtypes other than fp32 and
// bf16.
std::optional<kernels::Fp8Recipe> wire_recipe_of(const at::Tensor& weight, const std::string& name,
                                                 at::ScalarType compute);
// That recipe stays from now on.
void fix_recipe_of(const at::Tensor& weight);

}  // namespace fsdp
