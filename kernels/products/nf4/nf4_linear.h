// A matrix product with a frozen weight that rests as NF4 codes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

// Bytes of the record (kernels/raw/formats/nf4.h) of so many elements.
int64_t nf4_bytes(int64_t numel);

// y = x W^T, differentiable in x: x [..., in] in fp32 or bf16, `record` the nf4_bytes(out * in) bytes of W [out, in], a
// uint8 tensor without gradient on x's device, y [..., out]. W is decoded to x's dtype for the product, in the backward
// again, and freed after it. Operator: fsdp::nf4_linear. Throws c10::Error on what does not fit.
at::Tensor nf4_linear(const at::Tensor& x, const at::Tensor& record, int64_t out);

// W [out, in] in fp32 or bf16: on the CPU by our threads, on other devices by LibTorch's operators, the same bits.
// Operator: fsdp::decode_nf4.
at::Tensor decode_nf4(const at::Tensor& record, int64_t out, int64_t in, at::ScalarType type);

// What other devices do, for tests on the CPU.
at::Tensor decode_nf4_by_operators(const at::Tensor& record, int64_t out, int64_t in, at::ScalarType type);

// The record of a matrix, on the CPU; numbers that are not finite are an error.
at::Tensor encode_nf4(const at::Tensor& weight);

}  // namespace fsdp::kernels
