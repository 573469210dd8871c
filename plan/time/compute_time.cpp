#include "plan/time/compute_time.h"

#include <algorithm>

namespace fsdp::plan::time {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

double attention_ms(const Work& work, Dtype dtype, const Hardware& hardware) {
  const double peak = hardware.flops(dtype == Dtype::kFp8 ? Dtype::kBf16 : dtype);
  const auto masked = [](double share, double without) { return share > 0 ? share : without; };
  const double masked_forward =
      masked(hardware.masked_attention_forward_efficiency, hardware.attention_forward_efficiency);
  const double masked_backward =
      masked(hardware.masked_attention_backward_efficiency, hardware.attention_backward_efficiency);
  return 1e3 * (work.attention_forward_flops / (peak * hardware.attention_forward_efficiency) +
                work.attention_backward_flops / (peak * hardware.attention_backward_efficiency) +
                work.masked_forward_flops / (peak * masked_forward) +
                work.masked_backward_flops / (peak * masked_backward)) +
         1e-3 * (work.attention_forward_rows * hardware.attention_forward_row_us +
                 work.attention_backward_rows * hardware.attention_backward_row_us);
}

double tile_occupancy(const Product& product, const Hardware& hardware) {
  if (hardware.processors == 0 || product.m == 0 || product.n == 0) return 1;
  const int64_t rows = hardware.tile_rows, columns = hardware.tile_columns, processors = hardware.processors;
  const int64_t tiles = divide_up(product.m, rows) * divide_up(product.n, columns);
  const double useful = static_cast<double>(product.m) * static_cast<double>(product.n);
  return useful / static_cast<double>(divide_up(tiles, processors) * processors * rows * columns);
}

double product_ms(const Product& product, Dtype dtype, const Hardware& hardware) {
  const double rate = hardware.flops(dtype) * hardware.product_efficiency * tile_occupancy(product, hardware);
  const double elements = static_cast<double>(product.m) * static_cast<double>(product.k) +
                          static_cast<double>(product.k) * static_cast<double>(product.n) +
                          static_cast<double>(product.m) * static_cast<double>(product.n);
  const double bytes = elements * static_cast<double>(element_bytes(dtype) * product.count);
  const double launches = hardware.launch_us * 1e-3 * static_cast<double>(product.count);
  return std::max(1e3 * product.flops() / rate, memory_ms(bytes, hardware)) + launches;
}

double work_ms(const Work& work, Dtype dtype, const Hardware& hardware) {
  double ms = attention_ms(work, dtype, hardware) + memory_ms(work.bytes, hardware) +
              hardware.operator_cost_us() * 1e-3 * static_cast<double>(work.kernels);
  for (const Product& product : work.products) ms += product_ms(product, dtype, hardware);
  return ms;
}

double weight_gradients_ms(const Work& work, Dtype dtype, const Hardware& hardware) {
  double ms = 0;
  for (const Product& product : work.products) {
    if (product.of == ProductOf::kWeightGradient) ms += product_ms(product, dtype, hardware);
  }
  return ms;
}

double memory_ms(double bytes, const Hardware& hardware) {
  return 1e3 * bytes / (hardware.memory_bytes_per_second * hardware.memory_efficiency);
}

}  // namespace fsdp::plan::time
