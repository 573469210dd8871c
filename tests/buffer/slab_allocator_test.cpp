#include "fsdp/buffer/slab_allocator.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fsdp {
namespace {

TEST(SlabAllocator, ReusesSlabsOfTheSameSize) {
  SlabAllocator slabs(c10::Device(c10::kCPU));
  c10::DataPtr first = slabs.take(1000);
  const void* address = first.get();
  slabs.give_back(std::move(first), 1000);
  EXPECT_EQ(slabs.idle_bytes(), 1000);
  const c10::DataPtr again = slabs.take(1000);
  EXPECT_EQ(again.get(), address);
  EXPECT_EQ(slabs.idle_bytes(), 0);
  EXPECT_EQ(slabs.num_allocations(), 1);
  const c10::DataPtr other = slabs.take(1001);
  EXPECT_EQ(slabs.num_allocations(), 2);
}

TEST(SlabAllocator, SteadyUseAllocatesNothing) {
  SlabAllocator slabs(c10::Device(c10::kCPU));
  for (int round = 0; round < 10; ++round) {
    c10::DataPtr a = slabs.take(512);
    c10::DataPtr b = slabs.take(512);
    std::memset(a.get(), round, 512);
    std::memset(b.get(), round, 512);
    slabs.give_back(std::move(a), 512);
    slabs.give_back(std::move(b), 512);
  }
  EXPECT_EQ(slabs.num_allocations(), 2);
  EXPECT_EQ(slabs.idle_bytes(), 1024);
}

// As many as were ever in use together stay.
TEST(SlabAllocator, KeepsThePeak) {
  SlabAllocator slabs(c10::Device(c10::kCPU));
  for (int round = 0; round < 3; ++round) {
    std::vector<c10::DataPtr> taken;
    for (int i = 0; i < 5; ++i) taken.push_back(slabs.take(64));
    for (c10::DataPtr& slab : taken) slabs.give_back(std::move(slab), 64);
  }
  EXPECT_EQ(slabs.num_allocations(), 5);
  EXPECT_EQ(slabs.idle_bytes(), 5 * 64);
}

TEST(SlabAllocator, IsAligned) {
  SlabAllocator slabs(c10::Device(c10::kCPU));
  for (const int64_t bytes : {1, 3, 64, 1000}) {
    const c10::DataPtr slab = slabs.take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.get()) % 64, 0U) << bytes;
  }
}

TEST(SlabAllocator, TrimReturnsWhatLiesIdle) {
  SlabAllocator slabs(c10::Device(c10::kCPU));
  slabs.give_back(slabs.take(256), 256);
  slabs.trim();
  EXPECT_EQ(slabs.idle_bytes(), 0);
  const c10::DataPtr slab = slabs.take(256);
  EXPECT_EQ(slabs.num_allocations(), 2);
}

}  // namespace
}  // namespace fsdp
