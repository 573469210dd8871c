#include "kernels/base/parallel_for.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace fsdp::kernels {
namespace {

// Hands memory over from thread to thread for ThreadSanitizer, which does not see how LibTorch's threads meet: who
// takes a place sees what was done before it was given.
#ifdef __SANITIZE_THREAD__
void give(const char* place) { __tsan_release(const_cast<char*>(place)); }
void take(const char* place) { __tsan_acquire(const_cast<char*>(place)); }
#else
void give(const char*) {}
void take(const char*) {}
#endif

// The thread that shares a loop out, until all others are done, or one has thrown.
class Host {
 public:
  Host(const char* places, int64_t count) : places_(places), count_(count) {
    for (int64_t i = 0; i < count_; ++i) give(places_ + i);
  }
  ~Host() {
    for (int64_t i = 0; i < count_; ++i) take(places_ + i);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

 private:
  const char* places_;
  int64_t count_;
};

// A thread at its place.
class Visit {
 public:
  explicit Visit(const char* place) : place_(place) { take(place_); }
  ~Visit() { give(place_); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  const char* place_;
};

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
  const auto run_part = [&](char** data, const int64_t*, int64_t size, int64_t) {  // of one dimension: one row
    const Visit visit(data[0]);
    const int64_t first = begin + (data[0] - base) * part, last = std::min(end, first + size * part);
    if (first < last) body(first, last);
  };
  const Host host(base, count);
  places.for_each(run_part, /*grain_size=*/1);
}

}  // namespace fsdp::kernels
