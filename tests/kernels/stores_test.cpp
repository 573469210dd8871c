#include "kernels/stores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/sum_chunks.h"

namespace fsdp::kernels {
namespace {

// Shifts of both ends against a cache line, for every length around one; bytes before and behind stay what they were.
TEST(Stores, CopyTheSameBytesEitherWay) {
  std::vector<std::byte> from(512), to(512);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
  for (const auto stores : {Stores::kCached, Stores::kPastCache}) {
    for (size_t shift = 0; shift < 64; shift += 3) {
      for (size_t bytes = 0; bytes < 320; ++bytes) {
        std::fill(to.begin(), to.end(), std::byte{0});
        copy_bytes(to.data() + shift, from.data() + 7, static_cast<int64_t>(bytes), stores);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool is_inside = i >= shift && i < shift + bytes;
          ASSERT_EQ(to[i], is_inside ? from[i - shift + 7] : std::byte{0}) << shift << " + " << bytes << ", byte " << i;
        }
      }
    }
  }
}

TEST(Stores, SumsHaveTheSameBitsEitherWay) {
  at::manual_seed(5);
  for (const int64_t numel : {1, 15, 16, 33, 5000, 70001}) {
    for (const int64_t shift : {0, 1, 13}) {
      for (const int num_chunks : {1, 2, 3, 8}) {
        std::vector<at::Tensor> chunks;
        for (int i = 0; i < num_chunks; ++i) chunks.push_back(at::randn({numel + shift}).narrow(0, shift, numel));
        for (const bool add : {false, true}) {
          const at::Tensor start = at::randn({numel + shift + 16}), past = start.clone(), cached = start.clone();
          sum_chunks(past.narrow(0, shift, numel), chunks, add, Stores::kPastCache);
          sum_chunks(cached.narrow(0, shift, numel), chunks, add);
          EXPECT_TRUE(at::equal(past, cached)) << numel << ", " << shift << ", " << num_chunks << ", " << add;
          EXPECT_TRUE(at::equal(past.narrow(0, numel + shift, 16), start.narrow(0, numel + shift, 16)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
