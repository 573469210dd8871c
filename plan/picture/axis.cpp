#include "plan/picture/axis.h"

#include <cmath>
#include <initializer_list>

namespace fsdp::plan {

double round_step(double whole, int count) {
  const double power = std::pow(10, std::floor(std::log10(whole / count)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= whole / count) return factor * power;
  }
  return 10 * power;
}

}  // namespace fsdp::plan
