// What oneDNN keeps of products on a CPU.
#pragma once

#include <cstdint>

#include "io/base/dtype.h"
#include "models/config/decoder_config.h"

namespace fsdp::plan {

// Whether a rank computes the loss.
enum class Head { kElsewhere, kHere };

// Bytes of the code and descriptions that oneDNN makes for each size of product and keeps: on CPUs with AVX-512, whose
// products it computes but for gradients of fp32 weights. `part`: the decoder that a rank has, `tokens`: of its
// microbatch. An estimate, from runs of plan_memory.
int64_t product_kernel_bytes(const models::DecoderConfig& part, int64_t tokens, io::DType type, Head head);

}  // namespace fsdp::plan
