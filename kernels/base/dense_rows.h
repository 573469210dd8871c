// Tensors whose rows are dense though the tensor is not: columns of a wider one, as fused_linear() returns them.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <utility>

namespace fsdp::kernels {

// Tensors of one shape, as `count` rows of `width` elements each.
struct Rows {
  int64_t count, width;
};

// Whether rows of x, along its last dim, are dense and equally far apart.
bool is_in_dense_rows(const at::Tensor& x);

// x, or a dense copy where it is not so.
at::Tensor with_dense_rows(const at::Tensor& x);

// Of tensors with dense rows: a single row where all of them are contiguous, else those along the last dim.
Rows rows_of(std::initializer_list<at::Tensor> tensors);

// Elements from the start of a row of x to that of the next.
int64_t row_stride(const at::Tensor& x, Rows rows);

// Uninitialised tensors like a and b, which are of one shape: columns of one tensor where a and b are those of another
// and nothing else is, else contiguous.
std::pair<at::Tensor, at::Tensor> empty_beside_each_other(const at::Tensor& a, const at::Tensor& b);

}  // namespace fsdp::kernels
