// Part of the vector layer: products of pairs of bf16 (AVX512_BF16), which Highway has no target for. What is marked
// FSDP_BF16_PAIRS may run where has_bf16_pairs() of cpu_isa.h alone.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FSDP_HAS_BF16_PAIRS 1
#define FSDP_BF16_PAIRS __attribute__((target("avx512f,avx512bw,avx512bf16")))
#define FSDP_BF16_PAIRS_INLINE inline __attribute__((always_inline)) FSDP_BF16_PAIRS
#else
#define FSDP_HAS_BF16_PAIRS 0
#endif
