#include "train/base/matmul_peak.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "fsdp/comm/collectives.h"
#include "kernels/base/parallel_for.h"
#include "kernels/products/linear_parts.h"
#include "kernels/raw/products/gemm.h"
#include "kernels/raw/products/pair_gemm.h"

namespace fsdp::train {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Until a device has computed it.
void await(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) tensor.flatten()[0].item();
}

// A way to multiply: operations of a call for a size that the way is free to read.
struct Route {
  std::function<double(int64_t size)> multiply;
  int64_t largest;
};

// c = product(a, b) of square matrices.
Route make_square_route(const at::TensorOptions& options,
                        std::function<void(at::Tensor& c, const at::Tensor& a, const at::Tensor& b)> product) {
  struct Operands {
    at::Tensor a, b, c;
  };
  const auto multiply = [options, product = std::move(product), x = Operands{}](int64_t size) mutable {
    if (!x.a.defined() || x.a.size(0) != size)
      x = {at::full({size, size}, 0.5, options), at::full({size, size}, 0.25, options),
           at::empty({size, size}, options)};
    product(x.c, x.a, x.b);
    await(x.c);
    return 2 * std::pow(static_cast<double>(size), 3);
  };
  return {multiply, options.device().is_cpu() ? 2048 : 8192};
}

// Our tiles, on each thread over operands that stay in its cache.
Route make_tile_route(c10::ScalarType dtype) {
  constexpr int64_t kRows = 96, kColumns = 64, kDepth = 256;
  const at::Tensor a = at::full({kRows, kDepth}, 0.5, dtype), b = at::full({kDepth, kColumns}, 0.25, dtype);
  const auto multiply = [a, b, dtype](int64_t size) {
    const int64_t times = size / 16, threads = at::get_num_threads();
    kernels::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> c(static_cast<size_t>(kRows * kColumns));
      for (int64_t i = 0; i < times * (end - begin); ++i) {
        if (dtype == at::kFloat)
          kernels::raw::small_gemm(kRows, kColumns, kDepth, {a.const_data_ptr<float>(), kDepth, 1},
                                   b.const_data_ptr<float>(), kColumns, c.data(), kColumns, false);
        else
          kernels::raw::pair_gemm(kRows, kColumns, kDepth / 2,
                                  {static_cast<const kernels::raw::Bf16Pair*>(a.const_data_ptr()), kDepth / 2, 1},
                                  static_cast<const kernels::raw::Bf16Pair*>(b.const_data_ptr()), kColumns, c.data(),
                                  kColumns, false);
      }
    });
    return 2.0 * static_cast<double>(kRows * kColumns * kDepth * times * threads);
  };
  return {multiply, 8192};
}

std::vector<Route> make_routes(c10::ScalarType dtype, c10::Device device) {
  const at::TensorOptions options = at::device(device).dtype(dtype);
  std::vector<Route> routes = {
      make_square_route(options, [](at::Tensor& c, const at::Tensor& a, const at::Tensor& b) { at::mm_out(c, a, b); })};
  if (!device.is_cpu()) return routes;
  routes.push_back(make_square_route(
      options, [](at::Tensor& c, const at::Tensor& a, const at::Tensor& b) { c = kernels::product(a, b); }));
  if (dtype == at::kFloat || (dtype == at::kBFloat16 && kernels::raw::has_pair_gemm()))
    routes.push_back(make_tile_route(dtype));
  if (dtype != at::kFloat)
    for (Route& route : make_routes(at::kFloat, device)) routes.push_back(std::move(route));
  return routes;
}

double best_speed(const Route& route, double seconds) {
  constexpr double kLongEnough = 0.005;  // for the clock and for all threads to take part
  constexpr int64_t kSmallest = 256;
  const auto begin = Clock::now();
  double best = 0;
  int64_t size = kSmallest;
  route.multiply(size);  // finds its memory and kernel
  do {
    const auto start = Clock::now();
    const double operations = route.multiply(size);
    const double took = std::max(since(start), 1e-9);
    best = std::max(best, operations / took);
    if (took < kLongEnough) size = std::min(2 * size, route.largest);
  } while (since(begin) < seconds);
  return best;
}

}  // namespace

double measure_matmul_peak(c10::ScalarType dtype, double seconds, c10::Device device) {
  const at::NoGradGuard no_grad;
  const std::vector<Route> routes = make_routes(dtype, device);
  double best = 0;
  for (const Route& route : routes)
    best = std::max(best, best_speed(route, seconds / static_cast<double>(routes.size())));
  return best;
}

double peak_of_a_rank(const World& world, double tflops, c10::ScalarType dtype, c10::Device device) {
  constexpr double kTera = 1e12, kSeconds = 0.3;
  if (tflops > 0) return kTera * tflops;
  barrier(world, "measuring a matrix multiplication");
  const at::Tensor peak = at::full({1}, measure_matmul_peak(dtype, kSeconds, device), at::kDouble);
  return sum_over_ranks(world, peak).item<double>() / world.size;
}

}  // namespace fsdp::train
