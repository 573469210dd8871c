// Matrix products of any size in fp32, whose operands are packed: what a linear layer multiplies, forward and backward.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// A matrix of fp32 or bf16: element (row, column) is at data[row * row_stride + column * column_stride]; one of the
// strides is 1.
struct Operand {
  Operand(const float* numbers, int64_t rows_apart, int64_t columns_apart)
      : data(numbers), is_bf16(false), row_stride(rows_apart), column_stride(columns_apart) {}
  Operand(const Bf16* numbers, int64_t rows_apart, int64_t columns_apart)
      : data(numbers), is_bf16(true), row_stride(rows_apart), column_stride(columns_apart) {}

  const void* data;
  bool is_bf16;
  int64_t row_stride, column_stride;
};

// Numbers of scratch memory, 64-byte aligned, for products of depth k and n columns.
int64_t dense_gemm_scratch(int64_t n, int64_t k);

// Of depth k, so many numbers have a sum of their own, the last of them fewer; these sums are added up in their order.
int64_t dense_gemm_depth(int64_t k);

// C [m, n] = scale * A [m, k] B [k, n], added to C if `add`; C is row-major with the given stride. bf16 is widened as
// it is packed, a bf16 result is rounded once. Single-threaded, allocates nothing. After Goto and van de Geijn: B is
// packed into panels as wide as a tile, which meet blocks of A that stay in the second-level cache.
void dense_gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, float* c,
                int64_t c_stride, bool add, float* scratch);
void dense_gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, Bf16* c,
                int64_t c_stride, float* scratch);

}  // namespace fsdp::kernels::raw
