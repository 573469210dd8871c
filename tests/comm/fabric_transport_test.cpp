// Rank 0 of a network that is not there.
#include "fsdp/comm/transport/fabric_transport.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/comm/comm_thread.h"
#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"

namespace fsdp::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

TEST(Fabric, OtherRanksHoldWhatThisOneDoes) {
  const World world = connect_fabric(4, {0ns, 1e12});
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(transport_name(world), "fabric");
  const auto comm = world.connection->world();
  const torch::Tensor all = torch::zeros({12});
  comm->all_gather(all, torch::arange(3, torch::kFloat), {"gather", "", ""}).wait();
  EXPECT_TRUE(torch::equal(all, torch::arange(3, torch::kFloat).repeat(4)));
  const torch::Tensor staging = torch::empty({comm->staging_numel(3)});
  torch::Tensor sum = torch::ones({3});
  comm->reduce_scatter(all, sum, staging, Accumulate::kAdd, {"reduce", "", ""}).wait();
  EXPECT_TRUE(torch::equal(sum, 4 * torch::arange(3, torch::kFloat) + 1));
  comm->all_reduce_small(sum, {"sum", "", ""});
  EXPECT_TRUE(torch::equal(sum, 16 * torch::arange(3, torch::kFloat) + 4));
}

// 3 shards of 1 MB at 100 MB/s.
TEST(Fabric, TransfersShareOneLinkAndTakeTheirTime) {
  const World world = connect_fabric(4, {2ms, 1e8});
  const auto comm = world.connection->world();
  const torch::Tensor shard = torch::ones({250'000}), first = torch::empty({1'000'000}),
                      second = torch::empty_like(first);
  const auto begin = Clock::now();
  Pending one = comm->all_gather(first, shard, {"gather", "a", ""});
  Pending two = comm->all_gather(second, shard, {"gather", "b", ""});
  EXPECT_LT(ms_since(begin), 10);
  one.wait();
  EXPECT_GE(ms_since(begin), 32);
  two.wait();
  EXPECT_GE(ms_since(begin), 64);
}

TEST(Fabric, AJobThatIsGivenUpEndsSoon) {
  const World world = connect_fabric(2, {1h, 1e12});
  const auto comm = world.connection->world();
  const torch::Tensor all = torch::empty({2});
  const auto begin = Clock::now();
  {
    CommThread thread("test");
    Completion job = thread.post(Job("gather", "a", [&] {
      return comm->all_gather(all, torch::ones({1}), {"", "", ""});
    }));
    job.abandon();
  }
  EXPECT_LT(ms_since(begin), 5000);
}

// The schedule of rank 0 of eight: what it moves is known by arithmetic.
TEST(Fabric, OneProcessRunsTheScheduleOfOneRank) {
  const World world = connect_fabric(8, {10us, 1e9});
  torch::nn::Sequential model(torch::nn::Linear(16, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16));
  fully_shard(*model->ptr(0), Mesh::shard(world));
  Unit root = fully_shard(*model, Mesh::shard(world));
  SGD optimizer(parameters(*model), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    root.reset_counters();
    model->forward(torch::ones({4, 16})).square().mean().backward();
    clip_grad_norm_(*model, 1.0);
    optimizer.step();
    zero_grad(*model);
  }
  const Counters counters = root.counters();
  EXPECT_EQ(counters.reduces, 2);
  // 16 x 16 + 16 elements, eight shards of 36 (a multiple of four).
  EXPECT_EQ(counters.reduce_bytes, 2 * 7 * 36 * 4);
}

}  // namespace
}  // namespace fsdp::comm
