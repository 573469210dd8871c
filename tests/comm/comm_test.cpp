// Collectives over Gloo against plain sums, for every world size, dtype and awkward length.
#include "fsdp/comm/comm.h"
#include "fsdp/comm/comm_thread.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"
#include "tests/support/ranks.h"

namespace fsdp::comm {
namespace {

using testing::run_ranks;

// What rank `rank` holds; all ranks can compute all of it.
torch::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  return torch::randn({numel}, testing::generator(900 + static_cast<uint64_t>(rank))).to(dtype);
}

struct Case {
  int world;
  int64_t numel;  // of one shard
  at::ScalarType dtype;
};

void for_each_case(const std::function<void(const Case&, Comm&)>& body) {
  for (const int world : {1, 2, 3, 4, 8}) {
    run_ranks(world, [&](const World& place) {
      const auto comm = place.connection->world();
      for (const int64_t numel : {0, 1, 7, 64, 1001}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          SCOPED_TRACE(c10::str("world ", world, ", rank ", place.rank, ", ", numel, " x ", dtype));
          body({world, numel, dtype}, *comm);
        }
      }
    });
  }
}

torch::Tensor staging_for(Comm& comm, const Case& c) { return torch::empty({comm.staging_numel(c.numel)}, c.dtype); }

// Sum over the ranks of their [world * numel] tensors, in fp32, each rank with its neighbour, pairs with pairs.
torch::Tensor tree_sum(const Case& c, int64_t numel) {
  std::vector<torch::Tensor> sums;
  for (int rank = 0; rank < c.world; ++rank) sums.push_back(values_of(rank, numel, c.dtype).to(at::kFloat));
  for (; sums.size() > 1;
       sums.erase(std::remove_if(sums.begin(), sums.end(), [](auto& t) { return !t.defined(); }), sums.end())) {
    for (size_t i = 0; i + 1 < sums.size(); i += 2) sums[i] = sums[i] + std::exchange(sums[i + 1], torch::Tensor());
  }
  return sums[0];
}

// The same, one rank after the other.
torch::Tensor sum_in_rank_order(const Case& c, int64_t numel) {
  torch::Tensor sum = values_of(0, numel, c.dtype).to(at::kFloat);
  for (int rank = 1; rank < c.world; ++rank) sum = sum + values_of(rank, numel, c.dtype).to(at::kFloat);
  return sum;
}

// fp32 sums of a known order are exact to the bit; in bf16 every rounding may cost half a unit of 2^-8.
void expect_sum(const torch::Tensor& actual, const torch::Tensor& expected, const Case& c) {
  if (c.numel == 0) return;
  if (c.dtype == at::kFloat) {
    EXPECT_TRUE(torch::equal(actual, expected));
  } else {
    const auto bound = (expected.abs() + 8) * (c.world / 256.0);
    EXPECT_TRUE(((actual.to(at::kFloat) - expected).abs() <= bound).all().item<bool>());
  }
}

TEST(Comm, AllGather) {
  for_each_case([](const Case& c, Comm& comm) {
    std::vector<torch::Tensor> parts;
    for (int rank = 0; rank < c.world; ++rank) parts.push_back(values_of(rank, c.numel, c.dtype));
    const torch::Tensor expected = torch::cat(parts);
    const torch::Tensor output = torch::full({c.world * c.numel}, -1.0, c.dtype);
    comm.all_gather(output, values_of(comm.rank(), c.numel, c.dtype), {"gather", "", ""}).wait();
    EXPECT_TRUE(torch::equal(output, expected));

    const torch::Tensor in_place = torch::full({c.world * c.numel}, -1.0, c.dtype);
    const torch::Tensor own = in_place.narrow(0, comm.rank() * c.numel, c.numel);
    own.copy_(values_of(comm.rank(), c.numel, c.dtype));
    comm.all_gather(in_place, own, {"gather in place", "", ""}).wait();
    EXPECT_TRUE(torch::equal(in_place, expected));
  });
}

TEST(Comm, ReduceScatterOverwritesOrAdds) {
  for_each_case([](const Case& c, Comm& comm) {
    const int64_t whole = c.world * c.numel;
    const torch::Tensor input = values_of(comm.rank(), whole, c.dtype);
    const torch::Tensor expected = tree_sum(c, whole).narrow(0, comm.rank() * c.numel, c.numel);
    // The main grad is fp32 whatever travels.
    const torch::Tensor output = torch::full({c.numel}, std::nanf(""), at::kFloat);
    comm.reduce_scatter(input, output, staging_for(comm, c), Accumulate::kOverwrite, {"reduce", "", ""}).wait();
    expect_sum(output, expected, c);
    const torch::Tensor start = torch::full({c.numel}, 0.5);
    const torch::Tensor sum = start.clone();
    comm.reduce_scatter(input, sum, staging_for(comm, c), Accumulate::kAdd, {"reduce", "", ""}).wait();
    EXPECT_TRUE(torch::allclose(sum, start + output, 1e-6, 1e-5));
    EXPECT_TRUE(torch::equal(input, values_of(comm.rank(), whole, c.dtype)));  // inputs stay as they are
  });
}

TEST(Comm, AllReduceGivesEveryRankTheSameBits) {
  for_each_case([](const Case& c, Comm& comm) {
    const int64_t whole = c.world * c.numel;
    const torch::Tensor buffer = values_of(comm.rank(), whole, c.dtype);
    defer(all_reduce(comm.shared_from_this(), buffer, staging_for(comm, c), {"reduce", "", ""})).wait();
    expect_sum(buffer, tree_sum(c, whole), c);
    const torch::Tensor all = torch::empty({c.world * whole}, c.dtype);
    comm.all_gather(all, buffer, {"compare", "", ""}).wait();
    for (int rank = 0; rank < c.world; ++rank) EXPECT_TRUE(torch::equal(all.narrow(0, rank * whole, whole), buffer));
  });
}

TEST(Comm, SmallAllReduceTakesAnyShape) {
  for_each_case([](const Case& c, Comm& comm) {
    const torch::Tensor values = values_of(comm.rank(), 2 * c.numel, c.dtype).view({2, c.numel});
    comm.all_reduce_small(values, {"numbers", "", ""});
    expect_sum(values.flatten(), sum_in_rank_order(c, 2 * c.numel), c);
  });
}

TEST(Comm, BroadcastFromEveryRoot) {
  for_each_case([](const Case& c, Comm& comm) {
    for (int root = 0; root < c.world; ++root) {
      const torch::Tensor tensor = values_of(comm.rank(), c.numel, c.dtype);
      comm.broadcast(tensor, root, {"broadcast", "", ""});
      EXPECT_TRUE(torch::equal(tensor, values_of(root, c.numel, c.dtype))) << "root " << root;
    }
  });
}

TEST(Comm, CallsMayBeWaitedForOutOfOrder) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [&](const World& place) {
      const auto comm = place.connection->world();
      for (int round = 0; round < 20; ++round) {
        const torch::Tensor gathered = torch::empty({world * 33});
        const torch::Tensor input = torch::full({world * 5}, static_cast<float>(place.rank + round));
        const torch::Tensor reduced = torch::empty({5});
        const torch::Tensor staging = torch::empty({comm->staging_numel(5)});
        Pending gather =
            comm->all_gather(gathered, torch::full({33}, static_cast<float>(place.rank)), {"gather", "a", ""});
        Pending reduce = comm->reduce_scatter(input, reduced, staging, Accumulate::kOverwrite, {"reduce", "b", ""});
        EXPECT_TRUE(gather.in_flight());
        const bool gather_first = (place.rank + round) % 2 == 0;  // ranks need not agree
        (gather_first ? gather : reduce).wait();
        (gather_first ? reduce : gather).wait();
        EXPECT_FALSE(gather.in_flight());
        for (int rank = 0; rank < world; ++rank) {
          EXPECT_TRUE(torch::equal(gathered.narrow(0, rank * 33, 33), torch::full({33}, static_cast<float>(rank))));
        }
        EXPECT_TRUE(
            torch::equal(reduced, torch::full({5}, static_cast<float>(world * round + world * (world - 1) / 2))));
      }
    });
  }
}

TEST(Comm, NoRankLeavesABarrierBeforeAllHaveEntered) {
  std::atomic<int> entered{0};
  run_ranks(4, [&](const World& world) {
    const auto comm = world.connection->world();
    for (int round = 1; round <= 50; ++round) {
      ++entered;
      comm->barrier({"barrier", "", ""});
      EXPECT_GE(entered.load(), 4 * round);
      comm->barrier({"barrier", "", ""});
    }
  });
}

TEST(Comm, GroupsOfSomeRanksTalkAmongThemselves) {
  run_ranks(4, [](const World& world) {
    const std::vector<int> ranks = world.rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const auto comm = world.connection->group(ranks);
    EXPECT_EQ(comm->rank(), world.rank / 2);
    EXPECT_EQ(world.connection->group(ranks), comm);
    const torch::Tensor sum = torch::tensor({static_cast<float>(world.rank)});
    comm->all_reduce_small(sum, {"sum", "", ""});
    EXPECT_EQ(sum.item<float>(), world.rank % 2 == 0 ? 2.0F : 4.0F);
    barrier(world, "before the others leave");
  });
}

// Tags hold the low bits of a count.
TEST(Comm, ManyCallsWrapAround) {
  run_ranks(2, [](const World& world) {
    const auto comm = world.connection->world();
    const torch::Tensor output = torch::empty({2}, at::kInt);
    for (int i = 0; i < 5000; ++i) {
      comm->all_gather(output, torch::full({1}, i + world.rank, at::kInt), {"gather", "", ""}).wait();
      ASSERT_EQ(output[0].item<int>(), i);
      ASSERT_EQ(output[1].item<int>(), i + 1);
    }
    EXPECT_EQ(world.connection->calls().current().back().number, 5000);
  });
}

}  // namespace
}  // namespace fsdp::comm
