// Ranks of several hosts, as far as they know: what one host's ranks exchange through memory and what crosses between
// hosts make the same sums and gathers as one network does. Values are small integers, so that sums are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>

#include "fsdp/base/error.h"
#include "fsdp/comm/comm.h"
#include "tests/support/ranks.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;

struct Shape {
  int hosts;
  int ranks_per_host;
};

void run_hosts(const Shape& shape, const std::function<void(const World&)>& body,
               std::chrono::milliseconds deadline = fsdp::testing::kTestDeadline) {
  const auto options_of = [&](int rank) {
    ConnectOptions options;
    options.deadline = deadline;
    options.transport = TransportKind::kAuto;
    options.host_label = std::to_string(rank / shape.ranks_per_host);
    return options;
  };
  fsdp::testing::run_ranks_with(shape.hosts * shape.ranks_per_host, options_of, body);
}

at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kLong).mul(rank + 3).remainder(11).to(dtype);
}

class TwoLevelTransport : public ::testing::TestWithParam<Shape> {};

TEST_P(TwoLevelTransport, GathersWhatRanksHave) {
  run_hosts(GetParam(), [](const World& world) {
    const auto comm = world.connection->world();
    EXPECT_EQ(comm->transport_name(), "shm + gloo");
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t numel : {0, 1, 7, 1000, 200003}) {
        std::vector<at::Tensor> shards;
        for (int rank = 0; rank < world.size; ++rank) shards.push_back(values_of(rank, numel, dtype));
        const at::Tensor expected = at::cat(shards), output = at::full({world.size * numel}, -1, dtype);
        comm->all_gather(output, shards[static_cast<size_t>(world.rank)], {"gather", "", ""}).wait();
        EXPECT_TRUE(at::equal(output, expected)) << numel << " of " << dtype;
        at::Tensor in_place = at::full({world.size * numel}, -1, dtype);
        const at::Tensor own = in_place.narrow(0, world.rank * numel, numel);
        own.copy_(shards[static_cast<size_t>(world.rank)]);
        comm->all_gather(in_place, own, {"gather", "", ""}).wait();
        EXPECT_TRUE(at::equal(in_place, expected)) << numel << " of " << dtype << " in place";
      }
    }
  });
}

TEST_P(TwoLevelTransport, AddsWhatRanksHave) {
  run_hosts(GetParam(), [](const World& world) {
    const auto comm = world.connection->world();
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t numel : {0, 1, 7, 1000, 150001}) {
        at::Tensor sum = at::zeros({world.size * numel}, at::kFloat);
        for (int rank = 0; rank < world.size; ++rank) sum += values_of(rank, world.size * numel, at::kFloat);
        const at::Tensor staging = at::empty({comm->staging_numel(numel)}, dtype);
        const at::Tensor mine = sum.narrow(0, world.rank * numel, numel), output = at::ones({numel}, at::kFloat);
        for (const Accumulate accumulate : {Accumulate::kAdd, Accumulate::kOverwrite}) {
          comm->reduce_scatter(values_of(world.rank, world.size * numel, dtype), output, staging, accumulate,
                               {"reduce", "", ""})
              .wait();
          EXPECT_TRUE(at::equal(output, accumulate == Accumulate::kAdd ? mine + 1 : mine)) << numel << " of " << dtype;
        }
      }
    }
  });
}

TEST_P(TwoLevelTransport, BroadcastsFromEveryRank) {
  run_hosts(GetParam(), [](const World& world) {
    const auto comm = world.connection->world();
    for (int root = 0; root < world.size; ++root) {
      const at::Tensor tensor = values_of(world.rank, 5000, at::kFloat);
      comm->broadcast(tensor, root, {"broadcast", "", ""});
      EXPECT_TRUE(at::equal(tensor, values_of(root, 5000, at::kFloat))) << "from " << root;
    }
  });
}

// Groups along both axes, and one that is no grid.
TEST_P(TwoLevelTransport, LeavesOtherGroupsToOneLevel) {
  const Shape shape = GetParam();
  run_hosts(shape, [&](const World& world) {
    const int width = shape.ranks_per_host, host = world.rank / width, place = world.rank % width;
    std::vector<int> here, across, uneven;
    for (int i = 0; i < width; ++i) here.push_back(host * width + i);
    for (int i = 0; i < shape.hosts; ++i) across.push_back(i * width + place);
    for (int rank = 0; rank < width + 1; ++rank) uneven.push_back(rank);
    EXPECT_EQ(world.connection->group(here)->transport_name(), "shm");
    EXPECT_EQ(world.connection->group(across)->transport_name(), "gloo");
    std::vector<std::vector<int>> groups = {here, across};
    if (world.rank <= width) groups.push_back(uneven);
    for (const auto& ranks : groups) {
      const at::Tensor sum = at::full({3}, world.rank, at::kLong);
      world.connection->group(ranks)->all_reduce_small(sum, {"sum", "", ""});
      EXPECT_EQ(sum[0].item<int64_t>(), std::accumulate(ranks.begin(), ranks.end(), 0));
    }
    world.connection->world()->barrier({"end", "", ""});
  });
}

TEST_P(TwoLevelTransport, NamesARankThatDoesNotCome) {
  std::latch complaints(GetParam().hosts * GetParam().ranks_per_host);
  run_hosts(
      GetParam(),
      [&](const World& world) {
        const auto comm = world.connection->world();
        comm->barrier({"begin", "", ""});
        std::string text;
        if (world.rank != 1) {
          try {
            comm->barrier({"lonely", "", ""});
          } catch (const Error& error) {
            text = error.what();
          }
          EXPECT_THAT(text, HasSubstr("rank 1 is missing"));
        }
        complaints.arrive_and_wait();  // nobody leaves before all have complained
      },
      std::chrono::seconds(1));
}

INSTANTIATE_TEST_SUITE_P(Hosts, TwoLevelTransport,
                         ::testing::Values(Shape{2, 2}, Shape{3, 2}, Shape{2, 3}, Shape{2, 4}), [](const auto& info) {
                           return std::to_string(info.param.hosts) + "hosts_of_" +
                                  std::to_string(info.param.ranks_per_host);
                         });

}  // namespace
}  // namespace fsdp::comm
