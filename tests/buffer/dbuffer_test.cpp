#include "fsdp/buffer/dbuffer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/base/error.h"
#include "fsdp/comm/connection.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

// Three tensors of 10, 7 and 3 elements over 3 shards of 8, written down by hand:
//   0..9 tensor 0, 10..11 padding, 12..18 tensor 1, 19 padding, 20..22 tensor 2, 23 padding
std::shared_ptr<const layout::FlatLayout> example() {
  layout::FlatLayout layout;
  layout.offsets = {0, 12, 20};
  layout.numels = {10, 7, 3};
  layout.shard_numel = 8;
  layout.num_shards = 3;
  return std::make_shared<const layout::FlatLayout>(layout);
}

TEST(DBuffer, PartsOfAReplicatedBufferAreWholeTensors) {
  const DBuffer buffer(example(), Placement::kReplicate, 1, at::kFloat, Backing::kOwned);
  buffer.local().copy_(torch::arange(24));
  EXPECT_EQ(buffer.bytes(), 96);
  EXPECT_TRUE(torch::equal(buffer.part(0), torch::arange(0, 10, at::kFloat)));
  EXPECT_TRUE(torch::equal(buffer.part(1), torch::arange(12, 19, at::kFloat)));
  EXPECT_TRUE(torch::equal(buffer.part(2), torch::arange(20, 23, at::kFloat)));
  EXPECT_TRUE(torch::equal(buffer.own_slice(), torch::arange(8, 16, at::kFloat)));
}

TEST(DBuffer, PartsOfShardsAreSlicesPossiblyEmpty) {
  const std::vector<std::vector<std::pair<int64_t, int64_t>>> expected = {
      {{0, 8}, {0, 0}, {0, 0}}, {{8, 10}, {12, 16}, {0, 0}}, {{0, 0}, {16, 19}, {20, 23}}};
  for (int shard = 0; shard < 3; ++shard) {
    const DBuffer buffer(example(), Placement::kShard, shard, at::kFloat, Backing::kOwned);
    ASSERT_EQ(buffer.local().numel(), 8);
    buffer.local().copy_(torch::arange(8 * shard, 8 * shard + 8));
    for (size_t i = 0; i < 3; ++i) {
      const auto [begin, end] = expected[static_cast<size_t>(shard)][i];
      EXPECT_TRUE(torch::equal(buffer.part(i), torch::arange(begin, end, at::kFloat)))
          << "shard " << shard << ", " << i;
    }
    EXPECT_THROW(buffer.own_slice(), Error);
  }
}

TEST(DBuffer, OwnedMemoryStartsAsZeros) {
  const DBuffer buffer(example(), Placement::kPartial, 0, at::kDouble, Backing::kOwned);
  EXPECT_TRUE(torch::equal(buffer.local(), torch::zeros({24}, at::kDouble)));
}

// What autograd saved, here weight.t(), sees what is filled in later.
TEST(DBuffer, ViewsFollowTheMemory) {
  const auto allocator = make_buffer_allocator({}, c10::Device(at::kCPU));
  BufferAllocator& slabs = *allocator;
  DBuffer buffer(example(), Placement::kReplicate, 0, at::kFloat, Backing::kSlab);
  EXPECT_FALSE(buffer.resident());
  EXPECT_EQ(buffer.local().storage().nbytes(), 0U);
  buffer.reallocate(slabs);
  const torch::Tensor saved = buffer.part(0).view({5, 2}).t();
  const c10::StorageImpl* storage = saved.storage().unsafeGetStorageImpl();
  buffer.release(slabs);
  EXPECT_EQ(saved.storage().nbytes(), 0U);
  const c10::DataPtr other_user = slabs.take(buffer.bytes());  // so that the buffer gets other memory
  buffer.reallocate(slabs);
  const auto version = saved._version();
  writable(buffer.local()).copy_(torch::arange(24));
  EXPECT_EQ(saved.storage().unsafeGetStorageImpl(), storage);
  EXPECT_EQ(saved._version(), version);
  EXPECT_TRUE(torch::equal(saved, torch::arange(0, 10, at::kFloat).view({5, 2}).t()));
  buffer.release(slabs);
}

TEST(DBuffer, MemoryIsTakenAndReturnedOnce) {
  const auto allocator = make_buffer_allocator({}, c10::Device(at::kCPU));
  BufferAllocator& slabs = *allocator;
  DBuffer buffer(example(), Placement::kReplicate, 0, at::kFloat, Backing::kSlab);
  EXPECT_THROW(buffer.release(slabs), Error);
  buffer.reallocate(slabs);
  EXPECT_THROW(buffer.reallocate(slabs), Error);
  buffer.release(slabs);
  EXPECT_THROW(buffer.release(slabs), Error);
}

TEST(DBuffer, GathersEveryRanksShard) {
  testing::run_ranks(3, [](const World& world) {
    const DBuffer shard(example(), Placement::kShard, world.rank, at::kFloat, Backing::kOwned);
    shard.local().copy_(torch::arange(8 * world.rank, 8 * world.rank + 8));
    DBuffer whole(example(), Placement::kReplicate, world.rank, at::kFloat, Backing::kOwned);
    const auto comm = world.connection->world();
    whole.all_gather_from(shard.local(), comm, {"gather", "test", ""})().wait();
    EXPECT_TRUE(torch::equal(whole.local(), torch::arange(24, at::kFloat)));

    DBuffer in_place(example(), Placement::kReplicate, world.rank, at::kFloat, Backing::kOwned);
    in_place.own_slice().copy_(shard.local());
    in_place.all_gather_from(in_place.own_slice(), comm, {"gather", "in place", ""})().wait();
    EXPECT_TRUE(torch::equal(in_place.local(), torch::arange(24, at::kFloat)));
  });
}

}  // namespace
}  // namespace fsdp
