#include "kernels/products/many_rows.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/dense_product.h"
#include "kernels/raw/products/dense_gemm.h"
#include "kernels/raw/products/gemm.h"
#include "kernels/raw/products/pair_gemm.h"
#include "kernels/raw/products/panels.h"

namespace fsdp::kernels {
namespace {

using at::BFloat16;
using raw::Bf16;
using raw::Bf16Pair;
using raw::Word;

// Sums are made as [outputs, rows], rows as lanes, so that the weight, which is the larger, is read as it lies.
constexpr int64_t kPanelRows = 64;   // of x, whose words lie together; 16, 32 or 48 in the last panel
constexpr int64_t kGroupPanels = 8;  // that a part of the weight meets while it is in the cache
constexpr int64_t kOutputs = 48;     // of such a part

// With so many rows, MKL's products of fp32 are faster on processors of Intel.
constexpr int64_t kDenseRows = 256;

struct Panels {
  at::Tensor words;  // panel after panel, each [depth, width]
  int64_t rows, depth;

  int64_t count() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int64_t width(int64_t panel) const {
    const int64_t left = std::min(kPanelRows, rows - panel * kPanelRows);
    return raw::whole_lanes(left);
  }
  const Word* at(int64_t panel, int64_t depth_begin) const {
    return words.const_data_ptr<Word>() + panel * kPanelRows * depth + depth_begin * width(panel);
  }
};

Panels pack(const Word* x, int64_t rows, int64_t depth) {
  const int64_t padded = raw::whole_lanes(rows);
  Panels panels{at::empty({padded * depth}, at::kFloat), rows, depth};
  auto* to = panels.words.mutable_data_ptr<Word>();
  parallel_for(0, panels.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kPanelRows;
      raw::pack_panel(x + row * depth, depth, std::min(kPanelRows, rows - row), depth, to + row * depth,
                      panels.width(panel));
    }
  });
  return panels;
}

// Of a weight [n, depth] the words first .. first + depth - 1 of some outputs.
struct WeightPart {
  int64_t first_output, outputs, first, depth;
};

// How the words of a part meet those of a panel: adds to sums [outputs, width]. `step` words of the sum at a time, a
// panel of which stays in the second-level cache; in fp32 as dense_product() takes them, so that sums are the same.
struct InFp32 {
  const float* weight;
  int64_t depth;
  int64_t step = raw::dense_gemm_depth(depth);

  void begin(const WeightPart&) {}
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    const float* from = weight + part.first_output * depth + part.first;
    raw::small_gemm(part.outputs, width, part.depth, {from, depth, 1}, panel, width, sums, width, part.first > 0);
  }
};

struct Widened {
  const Bf16* weight;
  int64_t depth;
  int64_t step = raw::dense_gemm_depth(depth);
  std::vector<float> wide = {};

  void begin(const WeightPart& part) {
    wide.resize(static_cast<size_t>(kOutputs * step));
    for (int64_t output = 0; output < part.outputs; ++output)
      raw::widen(weight + (part.first_output + output) * depth + part.first, wide.data() + output * part.depth,
                 part.depth);
  }
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    raw::small_gemm(part.outputs, width, part.depth, {wide.data(), part.depth, 1}, panel, width, sums, width,
                    part.first > 0);
  }
};

struct InPairs {
  const Bf16Pair* weight;
  int64_t depth;  // in pairs, as everywhere here
  int64_t step = 512;

  void begin(const WeightPart&) {}
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    const Bf16Pair* from = weight + part.first_output * depth + part.first;
    raw::pair_gemm(part.outputs, width, part.depth, {from, depth, 1}, reinterpret_cast<const Bf16Pair*>(panel), width,
                   sums, width, part.first > 0);
  }
};

// `count` of all the outputs that a row has.
struct Outputs {
  int64_t first, count, all;
};

// Some outputs of a group of panels.
template <class Product, class Y>
void multiply_group(Product& product, const Panels& x, int64_t first_panel, const Outputs& outputs, float* sums, Y* y) {
  const int64_t last_panel = std::min(first_panel + kGroupPanels, x.count());
  constexpr int64_t kPanelSums = kOutputs * kPanelRows;
  for (int64_t first = 0; first < x.depth; first += product.step) {
    const WeightPart part = {outputs.first, outputs.count, first, std::min(product.step, x.depth - first)};
    product.begin(part);
    for (int64_t panel = first_panel; panel < last_panel; ++panel)
      product.add(part, x.at(panel, first), x.width(panel), sums + (panel - first_panel) * kPanelSums);
  }
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t row = panel * kPanelRows;
    raw::unpack_panel(sums + (panel - first_panel) * kPanelSums, outputs.count, x.width(panel),
                      std::min(kPanelRows, x.rows - row), y + row * outputs.all + outputs.first, outputs.all);
  }
}

template <class Product, class Y>
void multiply(const Product& product, const Panels& x, int64_t outputs, Y* y) {
  parallel_for(0, (outputs + kOutputs - 1) / kOutputs, 1, [&](int64_t begin, int64_t end) {
    Product mine = product;
    std::vector<float> sums(static_cast<size_t>(std::min(x.count(), kGroupPanels) * kOutputs * kPanelRows));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task * kOutputs;
      const Outputs part = {first, std::min(kOutputs, outputs - first), outputs};
      for (int64_t panel = 0; panel < x.count(); panel += kGroupPanels)
        multiply_group(mine, x, panel, part, sums.data(), y);
    }
  });
}

template <class Y>
void multiply_in_fp32(const at::Tensor& x, const at::Tensor& weight, Y* y) {
  const int64_t outputs = weight.size(0), depth = weight.size(1), rows = x.numel() / depth;
  const Panels panels = pack(x.to(at::kFloat).const_data_ptr<float>(), rows, depth);
  if (weight.scalar_type() == at::kFloat)
    multiply(InFp32{weight.const_data_ptr<float>(), depth}, panels, outputs, y);
  else
    multiply(Widened{raw_data(weight.const_data_ptr<BFloat16>()), depth}, panels, outputs, y);
}

void multiply_pairs(const at::Tensor& x, const at::Tensor& weight, Bf16* y) {
  const int64_t outputs = weight.size(0), depth = weight.size(1) / 2, rows = x.numel() / weight.size(1);
  const Panels panels = pack(static_cast<const Word*>(x.const_data_ptr()), rows, depth);
  multiply(InPairs{static_cast<const Bf16Pair*>(weight.const_data_ptr()), depth}, panels, outputs, y);
}

}  // namespace

bool fits_many_rows(const at::Tensor& x, const at::Tensor& weight) {
  if (!x.is_cpu() || !weight.is_cpu() || weight.dim() != 2 || x.dim() < 1 || x.size(-1) != weight.size(1)) return false;
  const auto of = x.scalar_type(), with = weight.scalar_type();
  const bool known = (of == at::kFloat && (with == at::kFloat || with == at::kBFloat16)) ||
                     (of == at::kBFloat16 && with == at::kBFloat16);
  return known && x.numel() > 0 && weight.numel() > 0 && x.is_contiguous() && weight.is_contiguous();
}

at::Tensor many_rows_product(const at::Tensor& x, const at::Tensor& weight) {
  const bool is_bf16 = x.scalar_type() == at::kBFloat16;
  // With the same bits: they make their sums in the same order.
  const int64_t rows = x.numel() / x.size(-1);
  const bool prefers_dense =
      prefers_dense_product(rows, x.size(-1), x.scalar_type()) || (!is_bf16 && prefers_mkl() && rows >= kDenseRows);
  if (prefers_dense && x.scalar_type() == weight.scalar_type() && x.dim() >= 2) return dense_product(x, weight);
  if (fits_tiled_product(x, weight)) return tiled_product(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  if (is_bf16 && raw::has_pair_gemm() && weight.size(1) % 2 == 0)
    multiply_pairs(x, weight, raw_data(y.mutable_data_ptr<BFloat16>()));
  else if (is_bf16)
    multiply_in_fp32(x, weight, raw_data(y.mutable_data_ptr<BFloat16>()));
  else
    multiply_in_fp32(x, weight, y.mutable_data_ptr<float>());
  return y;
}

}  // namespace fsdp::kernels
