#include "kernels/operators/cached_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/operators/cached_attention_device.h"
#include "kernels/raw/attention/cached_attention.h"

namespace fsdp::kernels {
namespace {

using raw::kLanes;
constexpr int64_t kBlock = raw::kCachedBlock;
// Of what a call computes before it merges blocks: 32 MiB.
constexpr int64_t kScratchNumel = int64_t{1} << 23;

struct CacheSizes {
  int64_t tokens, heads, key_heads, dim, width, capacity, blocks;  // blocks: of the longest row
  int64_t group() const { return heads / key_heads; }
  int64_t partial_size() const { return raw::CachedBlock<float>::partial_size(group(), width); }
};

// The queries of one key head, in fp32, scaled, padded.
template <class T>
void widen_queries(const T* q, const CacheSizes& sizes, float* to) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(sizes.dim));
  for (int64_t g = 0; g < sizes.group(); ++g, q += sizes.dim, to += sizes.width) {
    for (int64_t i = 0; i < sizes.dim; ++i) to[i] = static_cast<float>(q[i]) * scale;
    std::fill(to + sizes.dim, to + sizes.width, 0.0f);
  }
}

// Blocks [first, last) of one query group, in order, to the group's results.
template <class T>
void merge(const float* partial, int64_t first, int64_t last, const CacheSizes& sizes, T* y) {
  const int64_t step = sizes.partial_size(), query_step = sizes.width + kLanes;
  for (int64_t g = 0; g < sizes.group(); ++g, y += sizes.dim) {
    const float* of_query = partial + g * query_step;
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t block = first; block < last; ++block) top = std::max(top, of_query[block * step]);
    float mixed[1024] = {};
    for (int64_t block = first; block < last; ++block) {
      const float* one = of_query + block * step;
      const float share = std::exp(one[0] - top);
      sum += one[1] * share;
      for (int64_t i = 0; i < sizes.dim; ++i) mixed[i] += one[kLanes + i] * share;
    }
    for (int64_t i = 0; i < sizes.dim; ++i) y[i] = static_cast<T>(mixed[i] / sum);
  }
}

void check_cache(const char* op, const at::Tensor& x_BTKD, const at::Tensor& cache_RKCW, at::IntArrayRef rows,
                 at::IntArrayRef starts) {
  TORCH_CHECK(x_BTKD.device() == cache_RKCW.device(), "[", op, "] got tensors on ", x_BTKD.device(),
              ", but a cache on ", cache_RKCW.device());
  TORCH_CHECK(x_BTKD.dim() == 4 && cache_RKCW.dim() == 4 && cache_RKCW.is_contiguous() &&
                  cache_RKCW.size(3) == cached_width(x_BTKD.size(3)) && x_BTKD.size(3) <= 1024,
              "[", op, "] [B, T, heads, D <= 1024] and a contiguous cache [R, K, C, W] needed: got ", x_BTKD.sizes(),
              " and ", cache_RKCW.sizes());
  TORCH_CHECK(x_BTKD.scalar_type() == cache_RKCW.scalar_type(), "[", op, "] got ", x_BTKD.scalar_type(),
              " for a cache of ", cache_RKCW.scalar_type());
  const auto count = static_cast<size_t>(x_BTKD.size(0));
  TORCH_CHECK(rows.size() == count && starts.size() == count, "[", op, "] got ", rows.size(), " rows and ",
              starts.size(), " starts for a batch of ", count);
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(rows[i] >= 0 && rows[i] < cache_RKCW.size(0) && starts[i] >= 0 &&
                    starts[i] + x_BTKD.size(1) <= cache_RKCW.size(2),
                "[", op, "] ", x_BTKD.size(1), " tokens at position ", starts[i], " of row ", rows[i],
                " do not fit a cache of ", cache_RKCW.sizes());
  }
}

// A call: its queries are [B, T, K] groups, of which each has its blocks.
template <class T>
struct CachedCall {
  const T *q, *k, *v;
  T* y;
  const CacheSizes& sizes;
  at::IntArrayRef rows, starts;
  int64_t window;

  size_t batch_row(int64_t group) const { return static_cast<size_t>(group / sizes.key_heads / sizes.tokens); }
  int64_t position(int64_t group) const { return starts[batch_row(group)] + group / sizes.key_heads % sizes.tokens; }
};

// Some groups of a call, and memory for as many: queries [count, G, W], and what their blocks leave.
struct Groups {
  int64_t first, count;
  float *queries, *partials;
};

template <class T>
void attend_blocks(const CachedCall<T>& call, const Groups& groups) {
  const CacheSizes& sizes = call.sizes;
  const int64_t query_step = sizes.group() * sizes.width;
  for (int64_t i = 0; i < groups.count; ++i)
    widen_queries(call.q + (groups.first + i) * sizes.group() * sizes.dim, sizes, groups.queries + i * query_step);
  parallel_for(0, groups.count * sizes.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / sizes.blocks, block = task % sizes.blocks;
      const int64_t group = groups.first + i, position = call.position(group);
      const int64_t first = std::max(block * kBlock, first_visible(position, call.window));
      const int64_t last = std::min((block + 1) * kBlock, position + 1);
      if (first >= last) continue;
      const int64_t head = call.rows[call.batch_row(group)] * sizes.key_heads + group % sizes.key_heads;
      const int64_t place = (head * sizes.capacity + first) * sizes.width;
      raw::attend_block(
          raw::CachedBlock<Raw<T>>{raw_data(call.k) + place, raw_data(call.v) + place, groups.queries + i * query_step,
                                   last - first, sizes.width, sizes.group()},
          groups.partials + task * sizes.partial_size());
    }
  });
}

template <class T>
void merge_blocks(const CachedCall<T>& call, const Groups& groups) {
  const CacheSizes& sizes = call.sizes;
  parallel_for(0, groups.count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = groups.first + i, position = call.position(group);
      merge(groups.partials + i * sizes.blocks * sizes.partial_size(), first_visible(position, call.window) / kBlock,
            position / kBlock + 1, sizes, call.y + group * sizes.group() * sizes.dim);
    }
  });
}

// So many groups at a time that what they need before they are merged stays small however many tokens are new.
template <class T>
void attend(const CachedCall<T>& call, int64_t groups, const at::TensorOptions& wide) {
  const CacheSizes& sizes = call.sizes;
  const int64_t query_numel = sizes.group() * sizes.width, partial_numel = sizes.blocks * sizes.partial_size();
  const int64_t fit = kScratchNumel / std::max<int64_t>(1, query_numel + partial_numel);
  const int64_t at_a_time = std::max<int64_t>(1, std::min(groups, fit));
  at::Tensor queries = at::empty({at_a_time, query_numel}, wide),
             partials = at::empty({at_a_time, partial_numel}, wide);
  for (int64_t first = 0; first < groups; first += at_a_time) {
    const Groups some = {first, std::min(at_a_time, groups - first), queries.mutable_data_ptr<float>(),
                         partials.mutable_data_ptr<float>()};
    attend_blocks(call, some);
    merge_blocks(call, some);
  }
}

}  // namespace

int64_t cached_width(int64_t head_dim) { return raw::whole_lanes(head_dim); }

void store_in_cache(const at::Tensor& x_BTKD, const at::Tensor& cache_RKCW, at::IntArrayRef rows,
                    at::IntArrayRef starts) {
  check_cache("store_in_cache", x_BTKD, cache_RKCW, rows, starts);
  TORCH_CHECK(x_BTKD.size(2) == cache_RKCW.size(1), "[store_in_cache] got ", x_BTKD.size(2), " heads for a cache of ",
              cache_RKCW.sizes());
  if (!x_BTKD.is_cpu()) return store_on_device(x_BTKD, cache_RKCW, rows, starts);
  const at::Tensor x = x_BTKD.contiguous();
  const int64_t tokens = x.size(1), heads = x.size(2), dim = x.size(3), capacity = cache_RKCW.size(2),
                width = cache_RKCW.size(3);
  const auto store = [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    T* cache = cache_RKCW.mutable_data_ptr<T>();
    for (size_t b = 0; b < rows.size(); ++b)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t head = 0; head < heads; ++head, from += dim) {
          T* to = cache + ((rows[b] * heads + head) * capacity + starts[b] + t) * width;
          std::copy(from, from + dim, to);
          std::fill(to + dim, to + width, zero);
        }
  };
  is_half_on_cpu(x) ? store(at::Half{}) : dispatch_dtype("store_in_cache", x, store);
}

at::Tensor cached_attention(const at::Tensor& q_BTHD, const at::Tensor& k_RKCW, const at::Tensor& v_RKCW,
                            at::IntArrayRef rows, at::IntArrayRef starts, int64_t window) {
  check_cache("cached_attention", q_BTHD, k_RKCW, rows, starts);
  TORCH_CHECK(v_RKCW.sizes() == k_RKCW.sizes() && v_RKCW.scalar_type() == k_RKCW.scalar_type() &&
                  v_RKCW.is_contiguous() && q_BTHD.size(2) % k_RKCW.size(1) == 0 && window >= 0,
              "[cached_attention] got q ", q_BTHD.sizes(), ", k ", k_RKCW.sizes(), ", v ", v_RKCW.sizes(), ", window ",
              window);
  if (rows.empty()) return at::empty_like(q_BTHD);
  if (!q_BTHD.is_cpu()) return attend_on_device(q_BTHD, k_RKCW, v_RKCW, rows, starts, window);
  if (is_half_on_cpu(q_BTHD))
    return narrowed(cached_attention(widened(q_BTHD), widened(k_RKCW), widened(v_RKCW), rows, starts, window));
  const at::Tensor q = q_BTHD.contiguous();
  const int64_t longest = *std::max_element(starts.begin(), starts.end()) + q.size(1);
  const CacheSizes sizes{
      q.size(1), q.size(2), k_RKCW.size(1), q.size(3), k_RKCW.size(3), k_RKCW.size(2), (longest + kBlock - 1) / kBlock};
  at::Tensor y_BTHD = at::empty(q.sizes(), q.options().requires_grad(false));
  const at::TensorOptions wide = y_BTHD.options().dtype(at::kFloat);
  dispatch_dtype("cached_attention", q, [&](auto zero) {
    using T = decltype(zero);
    const CachedCall<T> call{q.const_data_ptr<T>(),
                             k_RKCW.const_data_ptr<T>(),
                             v_RKCW.const_data_ptr<T>(),
                             y_BTHD.mutable_data_ptr<T>(),
                             sizes,
                             rows,
                             starts,
                             window};
    attend(call, q.size(0) * sizes.tokens * sizes.key_heads, wide);
  });
  return y_BTHD;
}

}  // namespace fsdp::kernels
