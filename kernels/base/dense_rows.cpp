#include "kernels/base/dense_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace fsdp::kernels {
namespace {

// From one row of x to the next; nothing where rows are not dense or the distance is not the same everywhere.
std::optional<int64_t> distance_of_rows(const at::Tensor& x) {
  if (x.is_contiguous()) return x.dim() > 0 ? x.size(-1) : 1;
  if (x.stride(-1) != 1) return std::nullopt;
  std::optional<int64_t> distance;
  int64_t rows = 1;
  for (int64_t dim = x.dim() - 2; dim >= 0; --dim) {
    if (x.size(dim) == 1) continue;
    if (!distance) distance = x.stride(dim);
    if (x.stride(dim) != *distance * rows) return std::nullopt;
    rows *= x.size(dim);
  }
  return distance ? distance : x.size(-1);
}

}  // namespace

bool is_in_dense_rows(const at::Tensor& x) { return distance_of_rows(x).has_value(); }

at::Tensor with_dense_rows(const at::Tensor& x) { return is_in_dense_rows(x) ? x : x.contiguous(); }

Rows rows_of(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  const bool all_dense =
      std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  if (all_dense || first.numel() == 0) return {1, first.numel()};
  return {first.numel() / first.size(-1), first.size(-1)};
}

int64_t row_stride(const at::Tensor& x, Rows rows) { return rows.count == 1 ? rows.width : *distance_of_rows(x); }

std::pair<at::Tensor, at::Tensor> empty_beside_each_other(const at::Tensor& a, const at::Tensor& b) {
  const bool are_columns = !a.is_contiguous() && a.is_alias_of(b) && a.strides() == b.strides() &&
                           b.storage_offset() == a.storage_offset() + a.size(-1) &&
                           distance_of_rows(a) == std::optional<int64_t>(2 * a.size(-1));
  if (!are_columns) return {at::empty(a.sizes(), a.options()), at::empty(b.sizes(), b.options())};
  std::vector<int64_t> sizes = a.sizes().vec();
  const int64_t width = sizes.back();
  sizes.back() *= 2;
  const at::Tensor both = at::empty(sizes, a.options());
  return {both.narrow(-1, 0, width), both.narrow(-1, width, width)};
}

}  // namespace fsdp::kernels
