#include "plan/time/product_line.h"

#include <stdexcept>
#include <string>

namespace fsdp::plan::time {

// seconds_i (overhead / seconds_i + flops_i / seconds_i / rate) should be seconds_i: linear in overhead and 1 / rate.
ProductLine fit_product_line(std::span<const ProductSample> samples) {
  if (samples.size() < 2)
    throw std::invalid_argument("[products] samples: got " + std::to_string(samples.size()) + ", expected at least 2.");
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const ProductSample& sample : samples) {
    if (!(sample.seconds > 0))
      throw std::invalid_argument("[products] seconds: got " + std::to_string(sample.seconds) +
                                  ", expected more than 0.");
    const double constant = 1 / sample.seconds, slope = sample.flops / sample.seconds;
    aa += constant * constant;
    ab += constant * slope;
    bb += slope * slope;
    a += constant;
    b += slope;
  }
  const double determinant = aa * bb - ab * ab;
  double overhead = determinant > 0 ? (a * bb - b * ab) / determinant : 0;
  double seconds_a_flop = determinant > 0 ? (b * aa - a * ab) / determinant : 0;
  if (overhead <= 0) {
    overhead = 0;
    seconds_a_flop = bb > 0 ? b / bb : 0;
  }
  if (!(seconds_a_flop > 0))
    throw std::invalid_argument(
        "[products] got times that do not grow with the size, expected larger products to take "
        "longer. Measure again on a quiet machine.");
  return {overhead, 1 / seconds_a_flop};
}

}  // namespace fsdp::plan::time
