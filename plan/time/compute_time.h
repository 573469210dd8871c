#pragma once

#include "plan/time/hardware.h"
#include "plan/time/work.h"

namespace fsdp::plan::time {

// Share of a product's tiles in the waves that compute them; 1 where the hardware has no tiles. After: NVIDIA's "Matrix
// Multiplication Background" on wave quantization.
double tile_occupancy(const Product& product, const Hardware& hardware);

// Milliseconds of one product with operands of `dtype`: the longer of its operations at the rate that products reach,
// and its operands at the memory's, and its launch.
double product_ms(const Product& product, Dtype dtype, const Hardware& hardware);

// Of attention alone, which multiplies in bf16 at the lowest.
double attention_ms(const Work& work, Dtype dtype, const Hardware& hardware);

// Of the products of `work` that are gradients of weights.
double weight_gradients_ms(const Work& work, Dtype dtype, const Hardware& hardware);

// Of `work`, one part after the other, as on one stream that nothing disturbs.
double work_ms(const Work& work, Dtype dtype, const Hardware& hardware);

// Of `bytes` that are read or written by operators which memory limits.
double memory_ms(double bytes, const Hardware& hardware);

}  // namespace fsdp::plan::time
