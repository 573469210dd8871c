// What everything that reads records of NF4 codes (kernels/raw/formats/nf4.h) asks of them, and by LibTorch's operators
// what their bytes stand for on devices without our kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/raw/formats/nf4.h"

namespace fsdp::kernels {

// Throw c10::Error, saying what was got: a record is the contiguous bytes of a matrix [out, in], which is read in fp32
// or bf16.
void check_nf4_record(const at::Tensor& record, int64_t out, int64_t in);
void check_nf4_type(at::ScalarType type);

// Elements that are decoded at once on a device: bounds the memory of what lies between bytes and weights.
inline constexpr int64_t kNf4DevicePiece = int64_t{1} << 22;

struct Nf4Tables {
  at::Tensor pairs;   // fp32, the two values of each byte of codes: [256, 2]
  at::Tensor scales;  // fp32 [256]
};
// Once for each device, so that no product waits for a copy from the host. They live as long as the process.
const Nf4Tables& nf4_tables(c10::Device device);

// Of all blocks of a record, fp32 [num_blocks], by operators.
at::Tensor nf4_scales(const at::Tensor& record, const raw::Nf4Layout& layout);

}  // namespace fsdp::kernels
