// Attention of new tokens over keys and values that are kept: what generation needs.
// Shape suffixes: B rows of the batch, T new tokens, H query heads, K key heads, D head dim; R rows of the cache,
// C its capacity in tokens, W head dim rounded up to a multiple of 16.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// W of a head dim.
int64_t cached_width(int64_t head_dim);

// Copies k or v [B, T, K, D] into cache [R, K, C, W] of one device and dtype (fp32 or bf16 on the CPU): token t of row
// b goes to position starts[b] + t of row rows[b]. Elements D .. W-1 become 0 on the CPU and stay as they are
// elsewhere. Throws c10::Error if something does not fit.
void store_in_cache(const at::Tensor& x_BTKD, const at::Tensor& cache_RKCW, at::IntArrayRef rows,
                    at::IntArrayRef starts);

// softmax(q k^T / sqrt(D)) v: query t of row b stands at position p = starts[b] + t of cache row rows[b] and sees the
// positions up to p, with a window only the last `window` of them (0: all). q [B, T, H, D], result alike, H a multiple
// of K, all of one device and dtype; without autograd. On the CPU sums in fp32, over blocks of 256 keys: a query's
// result depends neither on the rows beside it, nor on the capacity, nor on the number of threads; beside the result it
// takes up to 32 MiB, or what one token's queries of a key head need. After: Dao et al., Flash-Decoding. Elsewhere
// through scaled_dot_product_attention over the visible part of the cache, with a mask from the host unless all queries
// see the same keys.
at::Tensor cached_attention(const at::Tensor& q_BTHD, const at::Tensor& k_RKCW, const at::Tensor& v_RKCW,
                            at::IntArrayRef rows, at::IntArrayRef starts, int64_t window = 0);

}  // namespace fsdp::kernels
