#include "train/model/adapters/row_norms.h"

#include <ATen/ATen.h>

#include <vector>

#include "fsdp/fsdp.h"
#include "models/lora.h"
#include "train/base/agreement.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

// This rank's part of a weight, fp32, and where it lies in the whole.
struct Slice {
  at::Tensor values;
  int64_t first = 0;

  int64_t count() const { return values.numel(); }
  float* data() const { return values.mutable_data_ptr<float>(); }
};

Slice slice_of(const at::Tensor& leaf) {
  return {leaf.detach().view(-1).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true),
          local_range(leaf).begin};
}

// [out] doubles: of each row, over all ranks.
at::Tensor row_squares(const World& world, const io::LowRank& factors, const Slice& slice) {
  const at::Tensor mine = at::zeros({factors.out}, at::kDouble);
  io::add_row_squares(factors.in, slice.first, slice.count(), slice.data(), mine.mutable_data_ptr<double>());
  return sum_over_ranks(world, mine);
}

void work_in_magnitudes(const World& world, const io::LowRank& factors, double scale, const Slice& slice) {
  const at::Tensor before = row_squares(world, factors, slice);
  io::add_low_rank(factors, scale, slice.first, slice.count(), slice.data());
  const at::Tensor after = row_squares(world, factors, slice);
  std::vector<double> row_factors;
  for (int64_t row = 0; row < factors.out; ++row) {
    row_factors.push_back(
        io::magnitude_factor(factors, row, before.const_data_ptr<double>()[row], after.const_data_ptr<double>()[row]));
  }
  io::scale_rows(factors.in, slice.first, slice.count(), row_factors.data(), slice.data());
}

}  // namespace

std::map<std::string, at::Tensor> row_norms(const ShardedModel& model) {
  std::map<std::string, at::Tensor> norms;
  const std::vector<models::NamedLinear> linears = models::linears_in_blocks(model.decoder);
  for (size_t unit = 0; unit + 1 < model.units.size(); ++unit) {  // the last one is the root, without blocks
    const FullParameters readable(model.units[unit]);
    for (const models::NamedLinear& linear : linears) {
      const bool is_here = linear.name.rfind(model.prefixes[unit], 0) == 0;
      if (is_here && linear.module->has_magnitude()) norms[linear.name] = linear.module->row_norms().cpu();
    }
  }
  return norms;
}

void work_into_slices(const ShardedModel& model, const World& world, const io::Adapter& adapter) {
  const at::NoGradGuard no_grad;
  const double scale = adapter.config.scale();
  // In the model's order, so that all ranks write it alike, those too whose slice is empty.
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    if (!name.ends_with(".weight")) continue;
    const auto found = adapter.modules.find(name.substr(0, name.size() - std::string_view(".weight").size()));
    if (found == adapter.modules.end()) continue;
    const Slice slice = slice_of(leaf);
    if (found->second.magnitude == io::Magnitude::kNone) {
      io::add_low_rank(found->second, scale, slice.first, slice.count(), slice.data());
    } else {
      work_in_magnitudes(world, found->second, scale, slice);
    }
    leaf.detach().view(-1).copy_(slice.values);
  }
}

}  // namespace fsdp::train
