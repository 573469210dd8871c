#include "train/parity/difference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fsdp/comm/collectives.h"

namespace fsdp::train {
namespace {

constexpr int64_t kFields = 5;

double or_infinity(double value) { return std::isfinite(value) ? value : std::numeric_limits<double>::infinity(); }

}  // namespace

void Difference::add(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.numel() == 0) {
    return;
  }
  const at::Tensor target = expected.detach().to(at::kDouble).flatten();
  const at::Tensor difference = (actual.detach().to(at::kCPU).to(at::kDouble).flatten() - target).abs();
  max_abs = std::max(max_abs, or_infinity(difference.max().item<double>()));
  max_expected = std::max(max_expected, or_infinity(target.abs().max().item<double>()));
  sum_squares += or_infinity(difference.square().sum().item<double>());
  sum_squares_expected += or_infinity(target.square().sum().item<double>());
  compared += actual.numel();
}

double Difference::relative() const {
  return max_abs == 0 ? 0 : max_abs / std::max(max_expected, std::numeric_limits<double>::min());
}

std::vector<Difference> join_over_ranks(const World& world, const std::vector<Difference>& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  at::Tensor all = at::zeros({world.size * count * kFields}, at::kDouble);
  double* slot = all.mutable_data_ptr<double>() + world.rank * count * kFields;
  for (const Difference& d : mine) {
    for (const double value :
         {d.max_abs, d.max_expected, d.sum_squares, d.sum_squares_expected, static_cast<double>(d.compared)}) {
      *slot++ = value;
    }
  }
  all = sum_over_ranks(world, all);
  std::vector<Difference> joined(mine.size());
  const double* value = all.const_data_ptr<double>();
  for (int rank = 0; rank < world.size; ++rank) {
    for (Difference& d : joined) {
      d.max_abs = std::max(d.max_abs, value[0]);
      d.max_expected = std::max(d.max_expected, value[1]);
      d.sum_squares += value[2];
      d.sum_squares_expected += value[3];
      d.compared += static_cast<int64_t>(value[4]);
      value += kFields;
    }
  }
  return joined;
}

}  // namespace fsdp::train
