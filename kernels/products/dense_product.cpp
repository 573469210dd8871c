#include "kernels/products/dense_product.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/dense_rows.h"
#include "kernels/base/dispatch.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/raw/cpu_isa.h"
#include "kernels/raw/products/amx.h"
#include "kernels/raw/products/dense_gemm.h"
#include "kernels/raw/products/pair_gemm.h"
#include "kernels/raw/products/tiled_gradient.h"
#include "kernels/raw/products/tiled_product.h"

namespace fsdp::kernels {
namespace {

using raw::CpuIsa;
using raw::Operand;

// Rows below which packing the weight costs more than oneDNN's worse tiles.
constexpr int64_t kLeastRows = 256;
// Sums below which MKL's products of fp32 are faster with SSE4.
constexpr int64_t kLeastDepthSse4 = 128;
// Tokens below which tiles of pairs are filled too badly.
constexpr int64_t kLeastTiledTokens = 64;
// Rows of a result that a thread computes, at least.
constexpr int64_t kGrain = 96;
// In tiles a thread packs what it needs of the weight: of so many columns it has all rows, unless threads are too many.
constexpr int64_t kTiledColumns = 64;
constexpr int64_t kTiledRows = 192;

// x [rows, columns], along or across whose rows numbers lie together.
template <class T>
Operand operand_of(const at::Tensor& x, int64_t row_stride, int64_t column_stride) {
  return {raw_data(x.const_data_ptr<T>()), row_stride, column_stride};
}

// By rows of a result [m, ..], each thread with so many numbers of scratch memory.
template <class Multiply>
void by_rows(int64_t m, int64_t scratch_numbers, const Multiply& multiply) {
  const auto bytes = static_cast<size_t>(scratch_numbers) * sizeof(float);
  parallel_for(0, m, kGrain, [&](int64_t begin, int64_t end) {
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(bytes);
    multiply(begin, end - begin, static_cast<float*>(scratch.get()));
  });
}

// Whether it lies in pairs that can be read as words of memory.
bool is_paired(const at::Tensor& x) {
  constexpr auto kBytes = sizeof(raw::Bf16Pair);
  return x.is_contiguous() && x.size(-1) % 2 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kBytes == 0;
}

// `total` in equal parts that are multiples of `unit`.
int64_t equal_parts(int64_t total, int64_t parts, int64_t unit) {
  const int64_t part = (total + parts - 1) / parts;
  return (part + unit - 1) / unit * unit;
}

bool is_of_mkl(at::ScalarType type) { return type == at::kFloat && prefers_mkl(); }

Operand from_row(Operand x, int64_t row) {
  const int64_t bytes = row * x.row_stride * static_cast<int64_t>(x.is_bf16 ? sizeof(raw::Bf16) : sizeof(float));
  x.data = static_cast<const char*>(x.data) + bytes;
  return x;
}

}  // namespace

bool prefers_dense_product(int64_t rows, int64_t depth, at::ScalarType type) {
  if (rows < kLeastRows || (type != at::kFloat && type != at::kBFloat16) || is_of_mkl(type)) return false;
  const CpuIsa isa = raw::cpu_isa();
  return isa == CpuIsa::kAvx2 || (isa == CpuIsa::kSse4 && (type != at::kFloat || depth >= kLeastDepthSse4));
}

bool prefers_dense_gradient(int64_t depth, at::ScalarType type) {
  if ((type != at::kFloat && (type != at::kBFloat16 || raw::has_pair_gemm())) || is_of_mkl(type)) return false;
  const CpuIsa isa = raw::cpu_isa();
  return isa == CpuIsa::kAvx2 || isa == CpuIsa::kAvx512 || (isa == CpuIsa::kSse4 && depth >= kLeastDepthSse4);
}

bool fits_dense_product(const at::Tensor& x) {
  return x.dim() >= 2 && ((x.dim() == 2 && x.stride(0) == 1) || is_in_dense_rows(x));
}

at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t n = b.size(0), k = b.size(1), m = a.numel() / k;
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = n;
  at::Tensor y = at::empty(shape, a.options().requires_grad(false));
  dispatch_dtype("linear", a, [&](auto zero) {
    using T = decltype(zero);
    const bool across = a.stride(-1) != 1;
    const Operand left = operand_of<T>(a, across ? 1 : row_stride(a, {m, k}), across ? a.stride(-1) : 1);
    const Operand right = operand_of<T>(b, b.stride(1), b.stride(0));
    auto* to = raw_data(y.mutable_data_ptr<T>());
    by_rows(m, raw::dense_gemm_scratch(n, k), [&](int64_t row, int64_t rows, float* scratch) {
      if constexpr (std::is_same_v<T, float>)
        raw::dense_gemm(rows, n, k, from_row(left, row), right, 1, to + row * n, n, false, scratch);
      else
        raw::dense_gemm(rows, n, k, from_row(left, row), right, 1, to + row * n, n, scratch);
    });
  });
  return y;
}

bool fits_tiled_product(const at::Tensor& a, const at::Tensor& b) {
  const auto fits = [](const at::Tensor& x) {
    return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.numel() > 0 && is_paired(x);
  };
  return raw::amx::is_available() && fits(a) && fits(b) && raw::pays_tiled_product(a.numel() / a.size(-1), a.size(-1));
}

at::Tensor tiled_product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t n = b.size(0), k = b.size(1), m = a.numel() / k, threads = at::get_num_threads();
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = n;
  at::Tensor y = at::empty(shape, a.options().requires_grad(false));
  const int64_t column_parts = std::clamp<int64_t>(n / kTiledColumns, 1, threads);
  const int64_t row_parts = std::clamp<int64_t>(threads / column_parts, 1, std::max<int64_t>(1, m / kTiledRows));
  const int64_t columns = equal_parts(n, column_parts, raw::kLanes), rows = equal_parts(m, row_parts, 2 * raw::kLanes);
  const auto bytes = static_cast<size_t>(raw::tiled_product_scratch(k)) * sizeof(float);
  const auto *from = raw_data(a.const_data_ptr<at::BFloat16>()), *with = raw_data(b.const_data_ptr<at::BFloat16>());
  auto* to = raw_data(y.mutable_data_ptr<at::BFloat16>());
  parallel_for(0, column_parts * row_parts, 1, [&](int64_t begin, int64_t end) {
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(bytes);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % column_parts * columns, row = task / column_parts * rows;
      if (column >= n || row >= m) continue;
      raw::tiled_product(std::min(rows, m - row), std::min(columns, n - column), k, from + row * k, with + column * k,
                         to + row * n + column, n, static_cast<float*>(scratch.get()));
    }
  });
  return y;
}

bool prefers_tiled_gradient(const at::Tensor& a_TN, const at::Tensor& b_TK) {
  const auto lies_in_rows = [](const at::Tensor& x) {
    return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.stride(1) == 1;
  };
  return raw::amx::is_available() && a_TN.size(0) >= kLeastTiledTokens && lies_in_rows(a_TN) && lies_in_rows(b_TK);
}

void dense_gradient(const at::Tensor& a_TN, const at::Tensor& b_TK, double scale, float* c, bool add) {
  const int64_t depth = a_TN.size(0), m = a_TN.size(1), n = b_TK.size(1);
  if (prefers_tiled_gradient(a_TN, b_TK)) {
    const auto* a = raw_data(a_TN.const_data_ptr<at::BFloat16>());
    const auto* b = raw_data(b_TK.const_data_ptr<at::BFloat16>());
    return by_rows(m, raw::tiled_gradient_scratch(n), [&](int64_t row, int64_t rows, float* scratch) {
      raw::tiled_gradient(rows, n, depth, a + row, a_TN.stride(0), b, b_TK.stride(0), static_cast<float>(scale),
                          c + row * n, n, add, scratch);
    });
  }
  dispatch_dtype("linear", a_TN, [&](auto zero) {
    using T = decltype(zero);
    const Operand left = operand_of<T>(a_TN, a_TN.stride(1), a_TN.stride(0));
    const Operand right = operand_of<T>(b_TK, b_TK.stride(0), b_TK.stride(1));
    by_rows(m, raw::dense_gemm_scratch(n, depth), [&](int64_t row, int64_t rows, float* scratch) {
      raw::dense_gemm(rows, n, depth, from_row(left, row), right, static_cast<float>(scale), c + row * n, n, add,
                      scratch);
    });
  });
}

}  // namespace fsdp::kernels
