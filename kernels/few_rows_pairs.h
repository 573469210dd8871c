// few_rows_product() in bf16 on processors that multiply pairs of it (AVX512_BF16).
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fsdp::kernels {

// y[row * stride + output] = x[row] . weight[output]: x [rows, k], weight [outputs, k]. Where has_pair_gemm(). Sums in
// fp32, in an order that does not depend on the number of rows or outputs; denormal numbers count as 0.
// Single-threaded.
void few_rows_of_pairs(const c10::BFloat16* x, const c10::BFloat16* weight, c10::BFloat16* y, int64_t rows, int64_t k,
                       int64_t stride, int64_t outputs);

}  // namespace fsdp::kernels
