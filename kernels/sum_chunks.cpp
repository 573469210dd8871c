#include "kernels/sum_chunks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/flat_kernels.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

// Elements summed at a time: the running sum stays in the first-level cache while the chunks pass by.
constexpr int64_t kBlock = 4096;

FSDP_SIMD_CLONES void assign(float* __restrict__ out, const float* __restrict__ in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
}

FSDP_SIMD_CLONES void add_to(float* __restrict__ out, const float* __restrict__ in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

FSDP_SIMD_CLONES void assign_sum(float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b,
                                 int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// out[begin, begin + n), written past the cache; out + begin at a multiple of 64 bytes, n a multiple of 16.
FSDP_SIMD_CLONES void assign_sum_past_cache(float* out, const float* const* chunks, int64_t num_chunks, int64_t begin,
                                            int64_t n) {
  for (int64_t i = begin; i < begin + n; i += simd::kLanes) {
    simd::Float sum = simd::load(chunks[0] + i);
    for (int64_t chunk = 1; chunk < num_chunks; ++chunk) sum += simd::load(chunks[chunk] + i);
    simd::store_past_cache(out + i, sum);
  }
}

void sum_floats(float* out, const std::vector<const float*>& chunks, int64_t begin, int64_t n, bool add) {
  alignas(64) float sum[kBlock];
  if (chunks.size() == 2 && !add) {
    assign_sum(out + begin, chunks[0] + begin, chunks[1] + begin, n);
    return;
  }
  assign(sum, chunks[0] + begin, n);
  for (size_t i = 1; i < chunks.size(); ++i) add_to(sum, chunks[i] + begin, n);
  if (add) {
    add_to(out + begin, sum, n);
  } else {
    assign(out + begin, sum, n);
  }
}

void sum_in_blocks(float* out, const std::vector<const float*>& chunks, int64_t begin, int64_t end, bool add) {
  for (; begin < end; begin += kBlock) sum_floats(out, chunks, begin, std::min(kBlock, end - begin), add);
}

void sum_past_cache(float* out, const std::vector<const float*>& chunks, int64_t n) {
  const int64_t head = std::min<int64_t>(n, simd::bytes_before_line(out) / static_cast<int64_t>(sizeof(float)));
  const int64_t lines = (n - head) / simd::kLanes * simd::kLanes;
  sum_in_blocks(out, chunks, 0, head, /*add=*/false);
  assign_sum_past_cache(out, chunks.data(), static_cast<int64_t>(chunks.size()), head, lines);
  sum_in_blocks(out, chunks, head + lines, n, /*add=*/false);
  simd::order_stores_past_cache();
}

bool is_plain_float(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

const FlatKernels* find_kernels_of(const at::Tensor& output, const std::vector<at::Tensor>& chunks) {
  if (output.is_cpu()) return nullptr;
  std::vector<at::Tensor> all = chunks;
  all.push_back(output);
  return find_flat_kernels(all);
}

}  // namespace

void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add, Stores stores) {
  if (output.numel() == 0) return;
  if (is_plain_float(output) && std::all_of(chunks.begin(), chunks.end(), is_plain_float)) {
    std::vector<const float*> pointers;
    for (const at::Tensor& chunk : chunks) pointers.push_back(chunk.const_data_ptr<float>());
    float* out = output.mutable_data_ptr<float>();
    if (stores == Stores::kPastCache && !add) {
      sum_past_cache(out, pointers, output.numel());
    } else {
      sum_in_blocks(out, pointers, 0, output.numel(), add);
    }
    return;
  }
  if (const FlatKernels* kernels = find_kernels_of(output, chunks)) return kernels->sum_chunks(output, chunks, add);
  // Wide enough to add up in: fp32 for the 16-bit types.
  const auto wide = at::promote_types(chunks[0].scalar_type(), at::kFloat);
  at::Tensor sum = chunks[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < chunks.size(); ++i) sum.add_(chunks[i]);
  if (add) sum = sum.add_(output);
  at::Tensor(output).copy_(sum);
}

}  // namespace fsdp::kernels
