#include "models/rotary_table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>

namespace fsdp::models {

at::Tensor rotary_frequencies(const RopeConfig& config, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / head_dim;
  const at::Tensor frequencies = 1.0 / at::pow(config.theta, exponents);
  if (config.kind == RopeConfig::Kind::kDefault) return frequencies;

  const double original = static_cast<double>(config.original_max_position_embeddings);
  const at::Tensor wave_length = 2 * std::numbers::pi / frequencies;
  const at::Tensor divided = frequencies / config.factor;
  const at::Tensor smooth =
      (original / wave_length - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * divided + smooth * frequencies;
  const at::Tensor low = at::where(wave_length > original / config.low_freq_factor, divided, blended);
  return at::where(wave_length < original / config.high_freq_factor, frequencies, low);
}

void RotaryTable::grow(int64_t num_positions, const at::TensorOptions& options) {
  const bool fits = cos_.defined() && cos_.size(0) >= num_positions && cos_.options().type_equal(options) &&
                    cos_.device() == options.device();
  if (fits) return;
  at::NoGradGuard no_grad;
  const int64_t known = cos_.defined() ? cos_.size(0) : 0;
  const int64_t size = std::max<int64_t>({num_positions, num_positions > known ? 2 * known : known, 256});
  const at::Tensor positions = at::arange(size, at::kFloat);
  const at::Tensor half = at::outer(positions, rotary_frequencies(config_, head_dim_));
  const at::Tensor angles = at::cat({half, half}, /*dim=*/1);
  cos_ = angles.cos().to(options);
  sin_ = angles.sin().to(options);
}

std::pair<at::Tensor, at::Tensor> RotaryTable::rows(int64_t first, int64_t num_positions,
                                                    const at::TensorOptions& options) {
  grow(first + num_positions, options);
  return {cos_.narrow(0, first, num_positions), sin_.narrow(0, first, num_positions)};
}

namespace {

// From the CPU by way of pinned memory, so that the host does not wait for a device.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.is_cpu() || !device.is_cuda()) return tensor.to(device);
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> RotaryTable::rows(const at::Tensor& positions, const at::TensorOptions& options) {
  TORCH_CHECK(positions.scalar_type() == at::kLong, "[decoder] position_ids: got ", positions.scalar_type(),
              ", expected int64");
  if (positions.numel() > 0)
    grow(positions.max().item<int64_t>() + 1, options);
  else
    grow(1, options);
  std::vector<int64_t> shape = positions.sizes().vec();
  shape.push_back(head_dim_);
  const at::Tensor flat = on_device(positions.flatten(), options.device());
  return {cos_.index_select(0, flat).view(shape), sin_.index_select(0, flat).view(shape)};
}

}  // namespace fsdp::models
