#include "train/matmul_peak.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "fsdp/comm/collectives.h"

namespace fsdp::train {
namespace {

// Until a device has computed it.
void await(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) tensor.flatten()[0].item();
}

}  // namespace

double measure_matmul_peak(c10::ScalarType dtype, double seconds, c10::Device device) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const at::NoGradGuard no_grad;
  constexpr int64_t kSmallest = 256;
  const int64_t largest = device.is_cpu() ? 2048 : 8192;
  const at::TensorOptions options = at::device(device).dtype(dtype);
  constexpr double kLongEnough = 0.01;  // seconds, for the clock and for all threads to take part
  const auto begin = Clock::now();
  double best = 0;
  int64_t size = kSmallest;
  at::Tensor a, b, c;
  do {
    if (!a.defined() || a.size(0) != size) {
      a = at::full({size, size}, 0.5, options);
      b = at::full({size, size}, 0.25, options);
      c = at::mm(a, b);  // finds its memory and kernel
      await(c);
    }
    const auto start = Clock::now();
    at::mm_out(c, a, b);
    await(c);
    const double took = std::max(since(start), 1e-9);
    best = std::max(best, 2 * std::pow(static_cast<double>(size), 3) / took);
    if (took < kLongEnough) size = std::min(2 * size, largest);
  } while (since(begin) < seconds);
  return best;
}

double peak_of_a_rank(const World& world, double tflops, c10::ScalarType dtype, c10::Device device) {
  constexpr double kTera = 1e12, kSeconds = 0.2;
  if (tflops > 0) return kTera * tflops;
  barrier(world, "measuring a matrix multiplication");
  const at::Tensor peak = at::full({1}, measure_matmul_peak(dtype, kSeconds, device), at::kDouble);
  return sum_over_ranks(world, peak).item<double>() / world.size;
}

}  // namespace fsdp::train
