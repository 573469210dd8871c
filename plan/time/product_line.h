#pragma once

#include <span>

namespace fsdp::plan::time {

// A product of so many operations, as measured.
struct ProductSample {
  double flops = 0;
  double seconds = 0;  // above 0
};

// Products take overhead + operations / rate.
struct ProductLine {
  double overhead_seconds = 0;  // at least 0
  double flops_per_second = 0;
};

// The line whose relative errors have the smallest sum of squares. Throws std::invalid_argument for fewer than two
// samples, for samples that take no time, and where larger products take no longer.
ProductLine fit_product_line(std::span<const ProductSample> samples);

}  // namespace fsdp::plan::time
