// Weights of 24 bits, an fp32 without its last eight, as a bf16 and a byte: the bf16 is the weight rounded to the
// nearest, and the byte says, in 256ths of the bf16's last digit, by how much that was too small in magnitude, -128 to
// 127. As integers: upper 24 bits = 256 * bf16 + byte. Exact, also where the two have different exponents.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// weight[i] of both. Of a zero that something else wrote over a weight, digits below it count as 0. Functions are
// single-threaded and allocate nothing.
void join_digits(const Bf16* rounded, const int8_t* digits, float* weight, int64_t count);

// Both of weight[i], which is rounded to 24 bits: to the nearest, ties to even.
void split_digits(const float* weight, Bf16* rounded, int8_t* digits, int64_t count);
// The same, but rounded up or down at random, in the mean to what it was. Element i draws from (seed, i) alone.
void split_digits_randomly(const float* weight, uint32_t seed, Bf16* rounded, int8_t* digits, int64_t count);

}  // namespace fsdp::kernels::raw
