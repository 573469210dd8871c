// All-to-all and messages on every transport of the host: each element tells who sent it to whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/base/error.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"
#include "tests/support/ranks.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;

class Exchange : public ::testing::TestWithParam<std::string> {
 protected:
  void run(int size, const std::function<void(const World&)>& body, std::chrono::milliseconds deadline) const {
    const auto options_of = [&](int rank) {
      ConnectOptions options;
      options.deadline = deadline;
      if (GetParam() != "gloo") options.transport = TransportKind::kAuto;
      if (GetParam() == "two-level" && 2 * rank >= size) options.host_label = "second";
      return options;
    };
    testing::run_ranks_with(size, options_of, body);
  }
  void run(int size, const std::function<void(const World&)>& body) const { run(size, body, testing::kTestDeadline); }
};

// What rank `from` sends to rank `to`.
torch::Tensor piece(int from, int to, int64_t count, at::ScalarType dtype) {
  return (torch::arange(count) * 64 + from * 8 + to).remainder(251).to(dtype);
}

void expect_exchange(Comm& comm, const ExchangeCounts& counts, at::ScalarType dtype, bool even) {
  std::vector<torch::Tensor> input, expected;
  const auto count = [&](int from, int to) { return counts[static_cast<size_t>(from)][static_cast<size_t>(to)]; };
  for (int peer = 0; peer < comm.size(); ++peer) {
    input.push_back(piece(comm.rank(), peer, count(comm.rank(), peer), dtype));
    expected.push_back(piece(peer, comm.rank(), count(peer, comm.rank()), dtype));
  }
  const torch::Tensor output = torch::full_like(torch::cat(expected), 255);
  const CallLabel label{"all-to-all", "layer", ""};
  if (even) {
    comm.all_to_all(output, torch::cat(input), label).wait();
  } else {
    EXPECT_EQ(comm.exchange_counts(counts[static_cast<size_t>(comm.rank())], {"counts", "layer", ""}), counts);
    comm.all_to_all(output, torch::cat(input), counts, label).wait();
  }
  EXPECT_TRUE(torch::equal(output, torch::cat(expected)));
}

TEST_P(Exchange, EvenPiecesGoToEveryRank) {
  for (const int size : {1, 2, 3, 4, 8}) {
    run(size, [&](const World& world) {
      const auto ranks = static_cast<size_t>(size);
      for (const int64_t numel : {0, 1, 7, 5000}) {
        for (const auto dtype : {at::kFloat, at::kByte}) {
          SCOPED_TRACE(c10::str(size, " ranks, ", numel, " x ", dtype));
          const ExchangeCounts counts(ranks, std::vector<int64_t>(ranks, numel));
          expect_exchange(*world.connection->world(), counts, dtype, /*even=*/true);
        }
      }
    });
  }
}

// Some send nothing, some get nothing, one keeps all to itself.
TEST_P(Exchange, UnevenPiecesGoWhereTheyBelong) {
  for (const int size : {1, 2, 3, 4, 6}) {
    run(size, [&](const World& world) {
      for (int round = 0; round < 6; ++round) {
        ExchangeCounts counts;
        for (int from = 0; from < size; ++from) {
          counts.emplace_back();
          for (int to = 0; to < size; ++to) {
            const int64_t count = (from * 31 + to * 17 + round * 7) % 5 * (round == 5 ? 3000 : 3);
            const bool nothing =
                (round == 1 && from == 0) || (round == 2 && to == size - 1) || (round == 3 && from != to) || round == 4;
            counts.back().push_back(nothing ? 0 : count);
          }
        }
        SCOPED_TRACE(c10::str(size, " ranks, round ", round));
        expect_exchange(*world.connection->world(), counts, at::kFloat, /*even=*/false);
      }
    });
  }
}

// A ring, with messages of both directions under one name, and more than one on its way.
TEST_P(Exchange, MessagesArriveInOrder) {
  for (const int size : {2, 3, 4}) {
    run(size, [&](const World& world) {
      const auto comm = world.connection->world();
      const int next = (world.rank + 1) % size, before = (world.rank + size - 1) % size;
      for (const int64_t numel : {0, 5, 4000}) {
        const torch::Tensor from_before = torch::zeros({2, numel}), from_next = torch::zeros({numel});
        std::vector<Pending> calls;
        const torch::Tensor first = piece(world.rank, next, numel, at::kFloat), second = first + 1;
        const torch::Tensor back = piece(world.rank, before, numel, at::kFloat);
        const bool sends_first = world.rank % 2 == 0;  // the order in which two ranks meet first
        const auto send = [&] {
          calls.push_back(comm->send(first, next, {"ring", "", ""}));
          calls.push_back(comm->send(second, next, {"ring", "", ""}));
          calls.push_back(comm->receive(from_next, next, {"back", "", ""}));
        };
        const auto receive = [&] {
          calls.push_back(comm->receive(from_before[0], before, {"ring", "", ""}));
          calls.push_back(comm->receive(from_before[1], before, {"ring", "", ""}));
          calls.push_back(comm->send(back, before, {"back", "", ""}));
        };
        // Ranks connect at their first message, so a ring must not wait for itself.
        if (sends_first) send();
        receive();
        if (!sends_first) send();
        for (Pending& call : calls) call.wait();
        const torch::Tensor expected = piece(before, world.rank, numel, at::kFloat);
        EXPECT_TRUE(torch::equal(from_before, torch::stack({expected, expected + 1})));
        EXPECT_TRUE(torch::equal(from_next, piece(next, world.rank, numel, at::kFloat)));
      }
    });
  }
}

TEST_P(Exchange, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  constexpr std::chrono::milliseconds kSoon{1500};
  run(
      4,
      [](const World& world) {
        const auto comm = world.connection->world();
        comm->barrier({"start", "", ""});
        std::string what;
        try {
          const torch::Tensor output = torch::empty({4});
          const std::string unit = world.rank == 2 ? "other layer" : "layer";
          comm->all_to_all(output, torch::ones({4}), {"all-to-all", unit, "dispatch"}).wait();
        } catch (const Error& error) {
          what = error.what();
        }
        if (world.rank == 2) {
          EXPECT_THAT(what, HasSubstr("all-to-all of 'other layer'"));
          return;
        }
        EXPECT_THAT(what, HasSubstr("all-to-all of 'layer' (dispatch)"));
        EXPECT_THAT(what, HasSubstr("rank 2"));
      },
      kSoon);
}

INSTANTIATE_TEST_SUITE_P(Transports, Exchange, ::testing::Values("gloo", "shm", "two-level"),
                         [](const auto& info) { return info.param == "two-level" ? "two_level" : info.param; });

TEST(ExchangeOfAFabric, TakesTheTimeOfWhatComesFromOthers) {
  const World world = connect_fabric(4, {std::chrono::nanoseconds(0), 1e12});
  const torch::Tensor input = torch::arange(8, torch::kFloat), output = torch::full({8}, -1.0);
  world.connection->world()->all_to_all(output, input, {"all-to-all", "", ""}).wait();
  EXPECT_TRUE(torch::equal(output, input));
}

}  // namespace
}  // namespace fsdp::comm
