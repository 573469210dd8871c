#include "kernels/products/nf4/nf4_record.h"

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::kernels {

void check_nf4_record(const at::Tensor& record, int64_t out, int64_t in) {
  TORCH_CHECK(record.scalar_type() == at::kByte && record.dim() == 1 && record.is_contiguous(),
              "[nf4] got a record of ", record.scalar_type(), " ", record.sizes(),
              ", expected contiguous bytes in one dimension.");
  TORCH_CHECK(out >= 0 && in >= 0 && record.numel() == raw::Nf4Layout{out * in}.num_bytes(), "[nf4] got a record of ",
              record.numel(), " bytes for a weight of ", out, " x ", in, ", expected ",
              raw::Nf4Layout{out * in}.num_bytes(), ".");
}

void check_nf4_type(at::ScalarType type) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "[nf4] got ", type, ", expected float32 or bfloat16.");
}

const Nf4Tables& nf4_tables(c10::Device device) {
  static std::mutex mutex;
  static auto* all = new std::map<std::pair<c10::DeviceType, int>, Nf4Tables>;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = all->try_emplace({device.type(), device.index()});
  if (!is_new) return place->second;
  std::vector<float> pairs;
  for (int pair = 0; pair < 256; ++pair) {
    pairs.push_back(raw::nf4_values()[pair >> 4]);
    pairs.push_back(raw::nf4_values()[pair & 15]);
  }
  place->second.pairs = at::tensor(pairs).view({256, 2}).to(device);
  place->second.scales = at::tensor(at::ArrayRef<float>(raw::nf4_scale_values(), 256)).to(device);
  return place->second;
}

at::Tensor nf4_scales(const at::Tensor& record, const raw::Nf4Layout& layout) {
  const at::Tensor bytes = record.narrow(0, layout.block_scales(), layout.num_blocks());
  const at::Tensor heads = record.narrow(0, 0, layout.block_scales()).view(at::kFloat);
  const at::Tensor groups = heads.narrow(0, 0, layout.num_groups()).repeat_interleave(raw::kNf4Group);
  at::Tensor scales = nf4_tables(record.device()).scales.index_select(0, bytes.to(at::kInt));
  return scales.mul_(groups.narrow(0, 0, layout.num_blocks())).add_(heads.narrow(0, layout.num_groups(), 1));
}

}  // namespace fsdp::kernels
