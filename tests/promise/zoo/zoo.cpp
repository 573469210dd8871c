#include "tests/promise/zoo/zoo.h"

#include <limits>
#include <stdexcept>

namespace fsdp::testing {

const std::vector<ZooCase>& zoo() {
  static const std::vector<ZooCase> cases = [] {
    std::vector<ZooCase> all = layer_cases();
    for (const auto& part : {unusual_cases(), script_cases()}) all.insert(all.end(), part.begin(), part.end());
    for (ZooCase& zoo_case : all) {
      if (!zoo_case.break_rows) zoo_case.break_rows = nan_rows;
    }
    return all;
  }();
  return cases;
}

const ZooCase& zoo_case(const std::string& name) {
  for (const ZooCase& candidate : zoo()) {
    if (candidate.name == name) return candidate;
  }
  throw std::logic_error("no model " + name + " in the zoo");
}

torch::Tensor nan_rows(const torch::Tensor& rows) {
  return torch::full_like(rows, std::numeric_limits<double>::quiet_NaN());
}

void refuse_nan(const torch::Tensor& rows) {
  if (rows.isnan().any().item<bool>()) throw std::runtime_error("rows are not numbers");
}

}  // namespace fsdp::testing
