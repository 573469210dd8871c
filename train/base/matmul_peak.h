#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "fsdp/mesh/mesh.h"

namespace fsdp::train {

// Floating point operations per second of the fastest matrix product that any route of this machine reaches, found
// within about `seconds`: LibTorch's and oneDNN's of square matrices, and on the CPU our own tiles over blocks that fit
// a cache, with the threads LibTorch has, or the device. Products of bf16 count those of fp32 too where these are
// faster. What models reach is measured against this (PaLM, arXiv 2204.02311, calls it model FLOPs utilisation). Local;
// draws no random numbers.
double measure_matmul_peak(c10::ScalarType dtype, double seconds, c10::Device device);

// The same for a rank while all of them compute, the mean over the ranks: cores that ranks share count once. Where
// `tflops` is not 0, that is the answer, in 10^12, and nothing is measured. COLLECTIVE.
double peak_of_a_rank(const World& world, double tflops, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::train
