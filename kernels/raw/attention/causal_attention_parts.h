// What the two ways of causal attention share: with fp32, and with pairs of bf16. Shape suffixes: P tokens of one
// document, rounded up to a multiple of 16; W head dim, rounded up likewise; both zero padded. Q queries of one block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw::attention {

inline constexpr int64_t kGroup = 16;
inline constexpr int64_t kQueryBlock = 48;    // a multiple of 16, and of the rows of a tile
inline constexpr int64_t kTiledQueries = 64;  // of such a block where products are made in tiles: pairs of it fill them
inline constexpr int64_t kMostQueries = std::max(kQueryBlock, kTiledQueries);
// Where keys are taken in blocks: scores and weights of a block of queries stay in the second-level cache, and so do
// its keys.
inline constexpr int64_t kKeyBlock = 512;

inline int64_t round_up(int64_t value) { return (value + kGroup - 1) / kGroup * kGroup; }

// Numbers from one row of P to the next: an odd number of lines of the cache, over whose sets rows are spread then.
inline int64_t spread_stride(int64_t padded) { return padded | kGroup; }

// One document and one key head: what a thread works on.
struct Task {
  int64_t first_token, length, key_head;
};

struct Sizes {
  int64_t heads, key_heads, dim, longest;  // longest document
  int64_t window;                          // keys a query sees, its own included
  float scale;

  int64_t group() const { return heads / key_heads; }
  int64_t width() const { return round_up(dim); }
  int64_t padded() const { return round_up(longest); }
};

// The keys that a block of queries is multiplied with: a multiple of 16, from a multiple of 16 on.
struct Band {
  int64_t first, count;
};

inline Band band_of(int64_t begin, int64_t queries, int64_t window) {
  const int64_t first = std::max<int64_t>(0, begin - window + 1) / kGroup * kGroup;
  return {first, begin + queries - first};
}

// Keys [begin, end) of a band are those a query sees.
struct Visible {
  int64_t begin, end;
};

inline Visible visible_to(int64_t token, const Band& band, int64_t window) {
  return {std::max<int64_t>(0, token - window + 1 - band.first), token + 1 - band.first};
}

// Hands out pieces of a thread's scratch memory; a copy starts where the original stands.
class Scratch {
 public:
  explicit Scratch(void* memory) : next_(static_cast<std::byte*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(next_);
    next_ += count * static_cast<int64_t>(sizeof(T));
    return piece;
  }

 private:
  std::byte* next_;
};

// One row a token, `stride` elements apart; its heads lie side by side.
template <class T>
struct TokenRows {
  T* data;
  int64_t stride;

  TokenRows from(int64_t token, int64_t column) const { return {data + token * stride + column, stride}; }
  T* row(int64_t token) const { return data + token * stride; }
};

template <class T>
struct ForwardTensors {
  TokenRows<const T> q, k, v;
  TokenRows<T> y;
  float* log_sum_exp;  // [tokens, H]
};

template <class T>
struct BackwardTensors {
  TokenRows<const T> grad_y, q, k, v, y;
  const float* log_sum_exp;
  TokenRows<T> grad_q, grad_k, grad_v;
};

}  // namespace fsdp::kernels::raw::attention
