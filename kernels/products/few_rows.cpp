#include "kernels/products/few_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/many_rows.h"
#include "kernels/raw/products/amx.h"
#include "kernels/raw/products/few_rows.h"
#include "kernels/raw/products/pair_gemm.h"

namespace fsdp::kernels {
namespace {

// Bytes of the weight below which a second thread costs more than it saves.
constexpr int64_t kTaskBytes = int64_t{1} << 15;

template <class W, class Y>
void multiply(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  at::Tensor wide = x;
  if (std::is_same_v<W, at::BFloat16>) {
    wide = at::empty({rows, k}, x.options().dtype(at::kFloat).requires_grad(false));
    raw::spread_rows(raw_data(x.const_data_ptr<Y>()), wide.mutable_data_ptr<float>(), rows, k);
  }
  const float* from = wide.const_data_ptr<float>();
  const auto* w = raw_data(weight.const_data_ptr<W>());
  auto* to = raw_data(y.mutable_data_ptr<Y>());
  const int64_t grain = std::max<int64_t>(8, kTaskBytes / (k * static_cast<int64_t>(sizeof(W))));
  parallel_for(0, outputs, grain, [&](int64_t begin, int64_t end) {
    raw::few_rows(from, w + begin * k, to + begin, rows, k, outputs, end - begin);
  });
}

// The same for bf16, in pairs.
void multiply_pairs(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  const auto* from = raw_data(x.const_data_ptr<at::BFloat16>());
  const auto* w = raw_data(weight.const_data_ptr<at::BFloat16>());
  auto* to = raw_data(y.mutable_data_ptr<at::BFloat16>());
  parallel_for(0, outputs, std::max<int64_t>(8, kTaskBytes / (2 * k)), [&](int64_t begin, int64_t end) {
    raw::few_rows_of_pairs(from, w + begin * k, to + begin, rows, k, outputs, end - begin);
  });
}

// The same for bf16, in tiles.
void multiply_tiles(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  const at::Tensor packed = at::empty({raw::amx::packed_size(rows, k)}, x.options().requires_grad(false));
  raw::amx::pack(raw_data(x.const_data_ptr<at::BFloat16>()), rows, k,
                 raw_data(packed.mutable_data_ptr<at::BFloat16>()));
  const auto* from = raw_data(packed.const_data_ptr<at::BFloat16>());
  const auto* w = raw_data(weight.const_data_ptr<at::BFloat16>());
  auto* to = raw_data(y.mutable_data_ptr<at::BFloat16>());
  const int64_t tasks = (outputs + raw::amx::kBlock - 1) / raw::amx::kBlock;
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / (2 * k * raw::amx::kBlock));
  parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * raw::amx::kBlock, last = std::min(end * raw::amx::kBlock, outputs);
    raw::amx::multiply(from, w + first * k, to + first, rows, k, outputs, last - first);
  });
}

}  // namespace

bool fits_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  if (!fits_many_rows(x, weight)) return false;
  const bool is_mixed = x.scalar_type() != weight.scalar_type();
  return x.numel() <= (is_mixed ? kFewRowsOfMixed : kFewRows) * x.size(-1);
}

at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  if (x.scalar_type() == at::kBFloat16 && raw::amx::fits(weight.size(0), weight.size(1)) && raw::amx::is_available())
    multiply_tiles(x, weight, y);
  else if (x.scalar_type() == at::kBFloat16 && raw::has_pair_gemm())
    multiply_pairs(x, weight, y);
  else if (x.scalar_type() == at::kBFloat16)
    multiply<at::BFloat16, at::BFloat16>(x, weight, y);
  else if (weight.scalar_type() == at::kBFloat16)
    multiply<at::BFloat16, float>(x, weight, y);
  else
    multiply<float, float>(x, weight, y);
  return y;
}

}  // namespace fsdp::kernels
