#include "kernels/many_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "kernels/few_rows.h"
#include "kernels/few_rows_amx.h"
#include "kernels/pair_gemm.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"
#include "kernels/small_gemm.h"

namespace fsdp::kernels {
namespace {

using at::BFloat16;
using simd::Float;
using simd::kLanes;

// Sums are made as [outputs, rows], rows as lanes, so that the weight, which is the larger, is read as it lies.
constexpr int64_t kPanelRows = 64;   // of x, whose words lie together; 16, 32 or 48 in the last panel
constexpr int64_t kGroupPanels = 8;  // that a part of the weight meets while it is in the cache
constexpr int64_t kOutputs = 48;     // of such a part
constexpr int64_t kDepth = 512;      // words of the sum at a time: a panel of them stays in the second-level cache

// A number of fp32, or a pair of bf16: what the products take at a time. Moved as fp32, whose bits are not looked at.
using Word = float;

struct Panels {
  at::Tensor words;  // panel after panel, each [depth, width]
  int64_t rows, depth;

  int64_t count() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int64_t width(int64_t panel) const {
    const int64_t left = std::min(kPanelRows, rows - panel * kPanelRows);
    return (left + kLanes - 1) / kLanes * kLanes;
  }
  const Word* at(int64_t panel, int64_t depth_begin) const {
    return words.const_data_ptr<Word>() + panel * kPanelRows * depth + depth_begin * width(panel);
  }
};

// x [rows, depth] to [depth, width], zeros beyond the rows.
FSDP_SIMD_CLONES void pack_panel(const Word* x, int64_t rows, int64_t depth, Word* to, int64_t width) {
  for (int64_t row = 0; row < width; row += kLanes, x += kLanes * depth, to += kLanes) {
    const int64_t count = std::clamp<int64_t>(rows - row, 0, kLanes);
    int64_t i = 0;
    for (; i + kLanes <= depth; i += kLanes) {
      Float square[kLanes] = {};
      for (int64_t lane = 0; lane < count; ++lane) square[lane] = simd::load(x + lane * depth + i);
      simd::transpose(square);
      for (int64_t lane = 0; lane < kLanes; ++lane) simd::store(to + (i + lane) * width, square[lane]);
    }
    for (; i < depth; ++i)
      for (int64_t lane = 0; lane < kLanes; ++lane) to[i * width + lane] = lane < count ? x[lane * depth + i] : 0;
  }
}

Panels pack(const Word* x, int64_t rows, int64_t depth) {
  const int64_t padded = (rows + kLanes - 1) / kLanes * kLanes;
  Panels panels{at::empty({padded * depth}, at::kFloat), rows, depth};
  auto* to = panels.words.mutable_data_ptr<Word>();
  parallel_for(0, panels.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kPanelRows;
      pack_panel(x + row * depth, std::min(kPanelRows, rows - row), depth, to + row * depth, panels.width(panel));
    }
  });
  return panels;
}

// sums [outputs, width] to y[row * stride + output].
template <class Y>
FSDP_ALWAYS_INLINE void unpack_sums(const float* sums, int64_t outputs, int64_t width, int64_t rows, Y* y,
                                    int64_t stride) {
  for (int64_t output = 0; output < outputs; output += kLanes) {
    const int64_t count = std::min(kLanes, outputs - output);
    for (int64_t row = 0; row < rows; row += kLanes) {
      Float square[kLanes] = {};
      for (int64_t lane = 0; lane < count; ++lane) square[lane] = simd::load(sums + (output + lane) * width + row);
      simd::transpose(square);
      for (int64_t lane = 0; lane < std::min(kLanes, rows - row); ++lane) {
        Y* to = y + (row + lane) * stride + output;
        count == kLanes ? simd::store(to, square[lane]) : simd::store_first(to, square[lane], count);
      }
    }
  }
}

FSDP_SIMD_CLONES void unpack(const float* sums, int64_t outputs, int64_t width, int64_t rows, float* y,
                             int64_t stride) {
  unpack_sums(sums, outputs, width, rows, y, stride);
}

FSDP_SIMD_CLONES void unpack(const float* sums, int64_t outputs, int64_t width, int64_t rows, BFloat16* y,
                             int64_t stride) {
  unpack_sums(sums, outputs, width, rows, y, stride);
}

FSDP_SIMD_CLONES void widen(const BFloat16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, simd::load(from + i));
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

// Of a weight [n, depth] the words first .. first + depth - 1 of some outputs.
struct WeightPart {
  int64_t first_output, outputs, first, depth;
};

// How the words of a part meet those of a panel: adds to sums [outputs, width].
struct InFp32 {
  const float* weight;
  int64_t depth;

  void begin(const WeightPart&) {}
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    const float* from = weight + part.first_output * depth + part.first;
    small_gemm(part.outputs, width, part.depth, {from, depth, 1}, panel, width, sums, width, part.first > 0);
  }
};

struct Widened {
  const BFloat16* weight;
  int64_t depth;
  std::vector<float> wide = {};

  void begin(const WeightPart& part) {
    wide.resize(static_cast<size_t>(kOutputs * kDepth));
    for (int64_t output = 0; output < part.outputs; ++output)
      widen(weight + (part.first_output + output) * depth + part.first, wide.data() + output * part.depth, part.depth);
  }
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    small_gemm(part.outputs, width, part.depth, {wide.data(), part.depth, 1}, panel, width, sums, width,
               part.first > 0);
  }
};

struct InPairs {
  const Bf16Pair* weight;
  int64_t depth;  // in pairs, as everywhere here

  void begin(const WeightPart&) {}
  void add(const WeightPart& part, const Word* panel, int64_t width, float* sums) const {
    const Bf16Pair* from = weight + part.first_output * depth + part.first;
    pair_gemm(part.outputs, width, part.depth, {from, depth, 1}, reinterpret_cast<const Bf16Pair*>(panel), width, sums,
              width, part.first > 0);
  }
};

// Some outputs of a group of panels.
template <class Product, class Y>
void multiply_group(Product& product, const Panels& x, int64_t first_panel, int64_t first_output, int64_t outputs,
                    float* sums, Y* y, int64_t stride) {
  const int64_t last_panel = std::min(first_panel + kGroupPanels, x.count());
  constexpr int64_t kPanelSums = kOutputs * kPanelRows;
  for (int64_t first = 0; first < x.depth; first += kDepth) {
    const WeightPart part = {first_output, outputs, first, std::min(kDepth, x.depth - first)};
    product.begin(part);
    for (int64_t panel = first_panel; panel < last_panel; ++panel)
      product.add(part, x.at(panel, first), x.width(panel), sums + (panel - first_panel) * kPanelSums);
  }
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t row = panel * kPanelRows;
    unpack(sums + (panel - first_panel) * kPanelSums, outputs, x.width(panel), std::min(kPanelRows, x.rows - row),
           y + row * stride + first_output, stride);
  }
}

template <class Product, class Y>
void multiply(const Product& product, const Panels& x, int64_t outputs, Y* y) {
  parallel_for(0, (outputs + kOutputs - 1) / kOutputs, 1, [&](int64_t begin, int64_t end) {
    Product mine = product;
    std::vector<float> sums(static_cast<size_t>(std::min(x.count(), kGroupPanels) * kOutputs * kPanelRows));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task * kOutputs;
      for (int64_t panel = 0; panel < x.count(); panel += kGroupPanels)
        multiply_group(mine, x, panel, first, std::min(kOutputs, outputs - first), sums.data(), y, outputs);
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
    multiply(Widened{weight.const_data_ptr<BFloat16>(), depth}, panels, outputs, y);
}

void multiply_pairs(const at::Tensor& x, const at::Tensor& weight, BFloat16* y) {
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
  if (is_bf16 && amx::fits(weight.size(0), weight.size(1)) && amx::is_available()) return few_rows_product(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  if (is_bf16 && has_pair_gemm() && weight.size(1) % 2 == 0)
    multiply_pairs(x, weight, y.mutable_data_ptr<BFloat16>());
  else if (is_bf16)
    multiply_in_fp32(x, weight, y.mutable_data_ptr<BFloat16>());
  else
    multiply_in_fp32(x, weight, y.mutable_data_ptr<float>());
  return y;
}

}  // namespace fsdp::kernels
