#include "kernels/base/parallel_for.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/operators/causal_attention.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/rms_norm.h"
#include "kernels/operators/rope.h"
#include "kernels/operators/swiglu.h"
#include "tests/kernels/compare.h"

namespace fsdp::kernels::parallel_for_test {
namespace {

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

TEST(ParallelFor, CallsForEveryNumberOnce) {
  for (const int threads : {1, 2, 5}) {
    const Threads scope(threads);
    for (const int64_t count : {0, 1, 2, 5, 7, 100}) {
      for (const int64_t grain : {1, 3, 1000}) {
        std::vector<int> calls(static_cast<size_t>(count) + 10);
        parallel_for(10, 10 + count, grain, [&](int64_t first, int64_t last) {
          EXPECT_LT(first, last);
          for (int64_t i = first; i < last; ++i) ++calls.at(static_cast<size_t>(i));
        });
        for (int64_t i = 0; i < 10 + count; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)], i < 10 ? 0 : 1);
      }
    }
  }
}

TEST(ParallelFor, RunsOnAsManyThreadsAsLibTorchHas) {
  const Threads scope(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  parallel_for(0, 4, 1, [&](int64_t first, int64_t last) {
    EXPECT_EQ(last - first, 1);
    parallel_for(0, 100, 1, [&](int64_t begin, int64_t end) { EXPECT_EQ(end - begin, 100); });  // serial in there
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 4u);
}

TEST(ParallelFor, ThrowsWhatABodyThrows) {
  const Threads scope(3);
  const auto fail = [](int64_t first, int64_t) {
    if (first > 0) throw std::runtime_error("of a part");
  };
  EXPECT_THROW(parallel_for(0, 3, 1, fail), std::runtime_error);
}

// What training computes, forward and backward.
std::vector<at::Tensor> results(at::ScalarType dtype) {
  torch::manual_seed(7);
  const at::Tensor q = values({2, 200, 6, 32}, dtype).requires_grad_(), k = values({2, 200, 2, 32}, dtype),
                   norm = values({32}, dtype).requires_grad_(), angles = values({200, 32}, dtype),
                   up = values({2, 200, 192}, dtype).requires_grad_();
  const auto [turned_q, turned_k] = apply_rope(rms_norm(q, norm, 1e-5), k, angles.cos(), angles.sin());
  const at::Tensor y = swiglu(causal_attention(turned_q, turned_k, k).flatten(2), up);
  const at::Tensor loss = cross_entropy(y.flatten(0, 1), at::arange(400) % 192);
  const auto grads = torch::autograd::grad({loss}, {q, norm, up});
  return {loss, grads[0], grads[1], grads[2]};
}

TEST(ParallelFor, KernelsHaveTheSameBitsOnAnyNumberOfThreads) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> alone;
    for (const int threads : {1, 2, 5}) {
      const Threads scope(threads);
      const std::vector<at::Tensor> now = results(dtype);
      if (alone.empty()) alone = now;
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_TRUE(at::equal(now[i], alone[i])) << dtype << " " << threads << " " << i;
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::parallel_for_test
