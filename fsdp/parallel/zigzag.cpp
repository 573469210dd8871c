#include "fsdp/parallel/zigzag.h"

#include <ATen/ATen.h>

#include <vector>

#include "fsdp/base/check.h"

namespace fsdp::parallel {

at::Tensor zigzag_positions(int64_t tokens, int rank, int ranks) {
  const int64_t chunks = 2 * int64_t{ranks}, chunk = tokens / chunks, last = chunks - 1 - rank;
  FSDP_CHECK(tokens % chunks == 0, "[parallel] sequence over cp: got ", tokens, " tokens for ", ranks,
             " ranks, expected a multiple of ", chunks,
             ", two chunks for each: ", chunk > 0 ? c10::str(chunk * chunks, " or ") : "", (chunk + 1) * chunks, ".");
  return at::cat({at::arange(rank * chunk, (rank + 1) * chunk, at::kLong),
                  at::arange(last * chunk, (last + 1) * chunk, at::kLong)});
}

at::Tensor zigzag_part(const at::Tensor& x, int64_t dim, int rank, int ranks) {
  if (ranks == 1) return x;
  return x.index_select(dim, zigzag_positions(x.size(dim), rank, ranks).to(x.device()));
}

at::Tensor zigzag_in_order(const at::Tensor& parts, int64_t dim, int ranks) {
  if (ranks == 1) return parts;
  std::vector<at::Tensor> positions;
  for (int rank = 0; rank < ranks; ++rank) positions.push_back(zigzag_positions(parts.size(dim), rank, ranks));
  return parts.index_select(dim, at::cat(positions).argsort().to(parts.device()));
}

}  // namespace fsdp::parallel
