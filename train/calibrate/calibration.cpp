#include "train/calibrate/calibration.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "fsdp/base/error.h"
#include "kernels/operators/causal_attention.h"
#include "kernels/products/linear.h"
#include "plan/time/product_line.h"

namespace fsdp::train {
namespace {

using Clock = std::chrono::steady_clock;
using plan::time::Product;
using plan::time::ProductLine;
using plan::time::ProductSample;

// The median of as many runs as there is time for, three at least.
double median_seconds(double budget, const std::function<void()>& run) {
  run();  // finds its memory and kernels
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  } while (times.size() < 3 || std::chrono::duration<double>(Clock::now() - begin).count() < budget);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

// Of one of a linear layer's three products, which are equally large.
ProductSample time_linear(const Product& product, c10::ScalarType dtype, double budget) {
  const at::TensorOptions options = at::dtype(dtype);
  const at::Tensor x = at::full({product.m, product.k}, 0.5, options).requires_grad_();
  const at::Tensor weight = at::full({product.n, product.k}, 0.25, options).requires_grad_();
  const at::Tensor gradient = at::full({product.m, product.n}, 0.125, options);
  const double seconds = median_seconds(budget, [&] {
    kernels::linear(x, weight).backward(gradient);
    x.mutable_grad().reset();
    weight.mutable_grad().reset();
  });
  return {product.flops(), seconds / 3};
}

ProductLine time_products(c10::ScalarType dtype, double seconds) {
  const Product products[] = {{64, 256, 256, 1},   {256, 256, 256, 1},   {256, 768, 256, 1},  {512, 512, 512, 1},
                              {1024, 512, 512, 1}, {1024, 1536, 512, 1}, {512, 4096, 512, 1}, {1024, 1024, 1024, 1}};
  std::vector<ProductSample> samples;
  for (const Product& product : products) samples.push_back(time_linear(product, dtype, seconds / std::size(products)));
  return plan::time::fit_product_line(samples);
}

struct AttentionRates {
  double forward, backward;  // operations per second
};

AttentionRates time_attention(c10::ScalarType dtype, double seconds) {
  constexpr int64_t kHeads = 4, kLength = 512, kWidth = 64;
  const at::TensorOptions options = at::dtype(dtype);
  const auto make = [&] { return at::full({1, kLength, kHeads, kWidth}, 0.1, options).requires_grad_(); };
  const at::Tensor q = make(), k = make(), v = make();
  const at::Tensor gradient = at::full({1, kLength, kHeads, kWidth}, 0.1, options);
  const double forward = median_seconds(seconds / 2, [&] { kernels::causal_attention(q, k, v); });
  const double both = median_seconds(seconds / 2, [&] {
    kernels::causal_attention(q, k, v).backward(gradient);
    for (const at::Tensor& input : {q, k, v}) input.mutable_grad().reset();
  });
  const double flops = 4.0 * kHeads * kLength * (kLength + 1) / 2 * kWidth;
  return {flops / forward, 2.5 * flops / std::max(both - forward, forward)};
}

// Of a pass that reads two buffers and writes one, all larger than a cache.
double memory_bytes_per_second(double seconds) {
  constexpr int64_t kNumel = int64_t{16} << 20;
  at::Tensor sum = at::ones({kNumel});
  const at::Tensor summand = at::ones({kNumel});
  return 3.0 * 4 * kNumel / median_seconds(seconds, [&] { sum.add_(summand); });
}

}  // namespace

plan::time::Hardware calibrate_cpu(c10::ScalarType dtype, double seconds) {
  if (dtype != at::kFloat && dtype != at::kBFloat16)
    throw Error(ErrorCode::kUsage,
                std::string("[calibrate] dtype: got ") + c10::toString(dtype) + ", expected Float or BFloat16.");
  plan::time::Hardware hardware = plan::time::find_hardware("cpu-core");
  const ProductLine products = time_products(dtype, 0.6 * seconds);
  const AttentionRates attention = time_attention(dtype, 0.25 * seconds);
  hardware.name = "this machine";
  hardware.peak_flops = {
      {dtype == at::kFloat ? plan::time::Dtype::kFp32 : plan::time::Dtype::kBf16, products.flops_per_second}};
  hardware.product_efficiency = 1;
  hardware.launch_us = 1e6 * products.overhead_seconds;
  hardware.attention_forward_efficiency = std::min(1.0, attention.forward / products.flops_per_second);
  hardware.attention_backward_efficiency = std::min(1.0, attention.backward / products.flops_per_second);
  hardware.memory_bytes_per_second = memory_bytes_per_second(0.15 * seconds);
  hardware.memory_efficiency = 1;
  return hardware;
}

}  // namespace fsdp::train
