#include "kernels/operators/cached_attention_device.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

namespace fsdp::kernels {
namespace {

// Whether `rows` follow each other.
bool is_range(at::IntArrayRef rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i] != rows[0] + static_cast<int64_t>(i)) return false;
  return true;
}

// The positions that queries read: those before `first` nobody does, and of the others the mask says which; none where
// all see all.
struct Visible {
  int64_t first, count;
  at::Tensor mask_BTL;  // bool
};

Visible visible_of(at::IntArrayRef starts, int64_t tokens, int64_t window, c10::Device device) {
  const auto [least, most] = std::minmax_element(starts.begin(), starts.end());
  const int64_t first = first_visible(*least, window), end = *most + tokens;
  if (tokens == 1 && *least == *most) return {first, end - first, {}};
  const at::Tensor positions_BT1 =
      (at::tensor(starts, at::kLong).unsqueeze(1) + at::arange(tokens, at::kLong)).unsqueeze(2);
  const at::Tensor keys_L = at::arange(first, end, at::kLong);
  at::Tensor mask_BTL = keys_L.le(positions_BT1);
  if (window > 0) mask_BTL = mask_BTL.logical_and_(keys_L.gt(positions_BT1 - window));
  return {first, end - first, mask_BTL.to(device)};
}

}  // namespace

void store_on_device(const at::Tensor& x_BTKD, const at::Tensor& cache_RKCW, at::IntArrayRef rows,
                     at::IntArrayRef starts) {
  for (size_t b = 0; b < rows.size(); ++b) {
    const at::Tensor to_KTD =
        cache_RKCW.select(0, rows[b]).narrow(1, starts[b], x_BTKD.size(1)).narrow(2, 0, x_BTKD.size(3));
    to_KTD.copy_(x_BTKD.select(0, static_cast<int64_t>(b)).transpose(0, 1));
  }
}

// Heads that share keys are taken as more queries of one head, so that no kernel needs to know of groups.
at::Tensor attend_on_device(const at::Tensor& q_BTHD, const at::Tensor& k_RKCW, const at::Tensor& v_RKCW,
                            at::IntArrayRef rows, at::IntArrayRef starts, int64_t window) {
  const int64_t batch = q_BTHD.size(0), tokens = q_BTHD.size(1), heads = q_BTHD.size(2), dim = q_BTHD.size(3);
  const int64_t key_heads = k_RKCW.size(1), group = heads / key_heads;
  const Visible visible = visible_of(starts, tokens, window, q_BTHD.device());
  const auto read = [&](const at::Tensor& cache_RKCW) {
    const at::Tensor seen_RKLD = cache_RKCW.narrow(2, visible.first, visible.count).narrow(3, 0, dim);
    if (is_range(rows)) return seen_RKLD.narrow(0, rows[0], batch);
    return seen_RKLD.index_select(0, at::tensor(rows, at::kLong).to(cache_RKCW.device()));
  };
  const at::Tensor q_BKXD = q_BTHD.reshape({batch, tokens, key_heads, group, dim})
                                .permute({0, 2, 3, 1, 4})
                                .reshape({batch, key_heads, group * tokens, dim});
  std::optional<at::Tensor> mask_B1XL;
  if (visible.mask_BTL.defined()) {
    mask_B1XL = visible.mask_BTL.unsqueeze(1)
                    .expand({batch, group, tokens, visible.count})
                    .reshape({batch, 1, group * tokens, visible.count});
  }
  const at::Tensor y_BKXD = at::scaled_dot_product_attention(q_BKXD, read(k_RKCW), read(v_RKCW), mask_B1XL);
  return y_BKXD.reshape({batch, key_heads, group, tokens, dim})
      .permute({0, 3, 1, 2, 4})
      .reshape({batch, tokens, heads, dim});
}

}  // namespace fsdp::kernels
