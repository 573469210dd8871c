// Rows of a table that rests as NF4 codes, by index.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

// y[..., :] = W[ids[...]] in fp32 or bf16: `record` the nf4_bytes(rows * width) bytes of W [rows, width], uint8, ids
// int64 of any shape on the same device, y [..., width]. Only the rows that are looked up are decoded, each as
// decode_nf4() decodes it; nothing has a gradient. On the CPU by our threads, on other devices by LibTorch's operators,
// the same bits. Operator: fsdp::nf4_embedding. Throws c10::Error on what does not fit, and on the CPU on ids outside
// 0 .. rows - 1; elsewhere, where a look at the ids would make the host wait, such an id's row is NaN.
at::Tensor nf4_embedding(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                         at::ScalarType type);

// What other devices do, for tests on the CPU.
at::Tensor nf4_embedding_by_operators(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                                      at::ScalarType type);

}  // namespace fsdp::kernels
