#include "kernels/base/parallel_for.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

namespace fsdp::kernels {
namespace {

// An iterator over `count` bytes, nobody's: LibTorch shares its iterations out among threads, one each.
at::TensorIterator make_places(int64_t count) {
  return at::TensorIteratorConfig()
      .set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .resize_outputs(false)
      .add_owned_output(at::detail::empty_cpu({count}, at::kByte))
      .build();
}

}  // namespace

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  if (begin >= end) return;
  const int64_t most = (end - begin + grain - 1) / grain;
  const int64_t count = at::in_parallel_region() ? 1 : std::min<int64_t>(most, at::get_num_threads());
  if (count <= 1) return body(begin, end);
  const int64_t part = (end - begin + count - 1) / count;
  at::TensorIterator places = make_places(count);
  const auto* base = static_cast<const char*>(places.data_ptr(0));
  places.for_each(
      [&](char** data, const int64_t*, int64_t size, int64_t) {  // of one dimension: one row
        const int64_t first = begin + (data[0] - base) * part, last = std::min(end, first + size * part);
        if (first < last) body(first, last);
      },
      /*grain_size=*/1);
}

}  // namespace fsdp::kernels
