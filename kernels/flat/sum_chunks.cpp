#include "kernels/flat/sum_chunks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/promote_types.h>

#include <algorithm>
#include <bit>
#include <span>

#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/sum_chunks.h"

namespace fsdp::kernels {
namespace {

const FlatKernels* find_kernels_of(const at::Tensor& output, const std::vector<at::Tensor>& chunks) {
  if (output.is_cpu()) return nullptr;
  std::vector<at::Tensor> all = chunks;
  all.push_back(output);
  return find_flat_kernels(all);
}

// Wide enough to add up in: fp32 for the 16-bit types. Not a chunk itself.
at::Tensor wide_sum(std::span<const at::Tensor> chunks) {
  if (chunks.size() == 1) {
    const auto wide = at::promote_types(chunks[0].scalar_type(), at::kFloat);
    return chunks[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  }
  const size_t first = std::bit_floor(chunks.size() - 1);
  if (chunks.size() - first == 1) return wide_sum(chunks.first(first)).add_(chunks.back());
  return wide_sum(chunks.first(first)).add_(wide_sum(chunks.subspan(first)));
}

}  // namespace

void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add, raw::Stores stores) {
  if (output.numel() == 0) return;
  if (is_cpu_float(output) && std::all_of(chunks.begin(), chunks.end(), is_cpu_float)) {
    std::vector<const float*> pointers;
    for (const at::Tensor& chunk : chunks) pointers.push_back(chunk.const_data_ptr<float>());
    raw::sum_chunks(output.mutable_data_ptr<float>(), pointers.data(), static_cast<int64_t>(pointers.size()),
                    output.numel(), add, stores);
    return;
  }
  if (const FlatKernels* kernels = find_kernels_of(output, chunks)) return kernels->sum_chunks(output, chunks, add);
  at::Tensor sum = wide_sum(chunks);
  if (add) sum = sum.add_(output);
  at::Tensor(output).copy_(sum);
}

}  // namespace fsdp::kernels
