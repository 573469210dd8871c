// Bytes that a rank receives over an axis, by the log of its calls, against what the documents say of them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::axis_traffic_test {
namespace {

using pipeline::Order;
using pipeline::Pipeline;
using pipeline::Stage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

// Of calls that begin with `op`, and of messages those from others, since call `first`.
int64_t logged_bytes(const World& world, const std::string& op, int64_t first) {
  std::istringstream lines(world.connection->calls().dump_json());
  const std::string own = " from rank " + std::to_string(world.rank);
  int64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json call = nlohmann::json::parse(line);
    const auto what = call.at("op").get<std::string>();
    if (call.at("number").get<int64_t>() >= first && what.starts_with(op) && !what.ends_with(own))
      bytes += call.at("bytes").get<int64_t>();
  }
  return bytes;
}
int64_t next_call(const World& world) {
  int64_t last = 0;
  for (const auto& call : world.connection->calls().current()) last = std::max(last, call.number);
  return last + 1;
}

// Of B bytes of activations a stage receives B of each microbatch from the stage before, and B of gradients from the
// one behind; in the first step sizes, too.
TEST(AxisTraffic, OfStagesIsThatOfTheFormula) {
  constexpr int64_t kNumbers = 6, kBytes = kNumbers * 4, kSizes = 80;
  for (const auto& [ranks, order, own, microbatches] :
       {std::tuple{2, Order::k1F1B, 1, 5}, {3, Order::kGPipe, 1, 4}, {2, Order::kInterleaved, 3, 4}}) {
    run_ranks(ranks, [&, ranks = ranks, order = order, own = own, microbatches = microbatches](const World& world) {
      const Mesh mesh(world, {{"pp", ranks}});
      const Stage stage{[](const at::Tensor& x, int) { return x * 2; }, {}};
      Pipeline pipeline(mesh, std::vector<Stage>(static_cast<size_t>(own), stage), order);
      const std::vector<at::Tensor> inputs(static_cast<size_t>(microbatches),
                                           torch::ones({kNumbers}, torch::requires_grad()));
      const int64_t first = next_call(world);
      pipeline.step(inputs, [](const at::Tensor& y, int) { return y.sum(); });
      const int64_t before = own - (world.rank == 0 ? 1 : 0), behind = own - (world.rank + 1 == ranks ? 1 : 0);
      EXPECT_EQ(logged_bytes(world, "send over pp", first), (before + behind) * microbatches * kBytes);
      EXPECT_EQ(logged_bytes(world, "agree over pp on", first), (before + behind) * kSizes);
      EXPECT_EQ(logged_bytes(world, "hand out the loss over pp", first), 8);
    });
  }
}

// Of E experts on N ranks: 8 N E bytes of numbers (8 (N-1) E of them from others), once.
TEST(AxisTraffic, OfExpertsCountsTheirTokensOnce) {
  constexpr int64_t kExperts = 6;
  run_ranks(3, [](const World& world) {
    const auto ranks = parallel::Ranks::along(Mesh(world, {{"ep", 3}}), "ep");
    const at::Generator numbers = generator(60 + static_cast<uint64_t>(world.rank));
    const torch::Tensor experts =
        torch::rand({7, kExperts}, numbers).argsort(1, /*descending=*/true).narrow(1, 0, 2).contiguous();
    const torch::Tensor x = torch::ones({7, 4}).requires_grad_();
    const torch::Tensor choices = ranks->gather(experts.unsqueeze(0), 0, "test");  // [3, 7, 2]
    ranks->reset_traffic();
    const int64_t first = next_call(world);
    const parallel::ExpertExchange exchange(experts, kExperts, ranks, "mixture");
    exchange.combine(exchange.dispatch(x), torch::ones({7, 2})).sum().backward();
    EXPECT_EQ(logged_bytes(world, "count tokens of experts over ep", first), 8 * 3 * kExperts);
    // Rows for this rank's experts from others, its own from theirs, and as many in the backward.
    const torch::Tensor place = choices.floor_divide(2);
    const auto to_me = place.eq(world.rank).sum().item<int64_t>(), mine = int64_t{14},
               stay = place[world.rank].eq(world.rank).sum().item<int64_t>();
    EXPECT_EQ(ranks->traffic().bytes, 2 * (to_me + mine - 2 * stay) * 4 * 4);
  });
}

}  // namespace
}  // namespace fsdp::axis_traffic_test
