// A rank that does something else along an axis than the others: they say along which, and who it is, at the deadline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::axis_failure_test {
namespace {

using parallel::Ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 4, kOdd = 3;  // who differs
constexpr std::chrono::milliseconds kDeadline{3000};

enum class Mistake { kAbsent, kOtherCall, kOtherShape };

// Layers of one axis, on activations of a width.
using Layer = std::function<void(const std::shared_ptr<Ranks>&, const std::string& layer, int64_t width)>;

void sum_parts(const std::shared_ptr<Ranks>& ranks, const std::string& layer, int64_t width) {
  parallel::leave_parts(torch::ones({2, width}), ranks, layer);
}

void attend(const std::shared_ptr<Ranks>& ranks, const std::string& layer, int64_t width) {
  const torch::Tensor q = torch::ones({1, 2, 1, width});
  parallel::context_attention(q, q, q, parallel::context_mask(2 * kRanks, {}, *ranks, q.options()), ranks, layer);
}

void pass_around(const std::shared_ptr<Ranks>& ranks, const std::string& layer, int64_t width) {
  const torch::Tensor q = torch::ones({1, 2, 1, width});
  parallel::ring_attention(q, q, q, {}, ranks, layer);
}

void go_to_experts(const std::shared_ptr<Ranks>& ranks, const std::string& layer, int64_t width) {
  const torch::Tensor experts = torch::arange(kRanks).unsqueeze(1);
  parallel::ExpertExchange(experts, kRanks, ranks, layer).dispatch(torch::ones({kRanks, width}));
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// `body` on ranks of worlds of their own, all at the same time: each waits for its deadline.
void run_together(const std::string& transport, const std::vector<std::function<void(const World&)>>& bodies) {
  const auto options_of = [&](int rank) {
    comm::ConnectOptions options;
    options.deadline = kDeadline;
    if (transport != "gloo") options.transport = TransportKind::kAuto;
    if (transport == "two-level" && 2 * rank >= kRanks) options.host_label = "second";
    return options;
  };
  std::vector<std::thread> worlds;
  for (const auto& body : bodies) {
    worlds.emplace_back([&options_of, &body] { EXPECT_NO_THROW(run_ranks_with(kRanks, options_of, body)); });
  }
  for (std::thread& world : worlds) world.join();
}

class AxisFailure : public ::testing::TestWithParam<std::string> {};

void expect_layer_names(const World& world, const std::string& axis, const Layer& layer, Mistake mistake) {
  const auto ranks = Ranks::along(Mesh(world, {{axis, kRanks}}), axis);
  layer(ranks, "first", 4);  // connects whom it takes
  const bool is_odd = world.rank == kOdd;
  if (is_odd && mistake == Mistake::kAbsent) return;
  const std::string what = error_of([&] {
    layer(ranks, is_odd && mistake == Mistake::kOtherCall ? "third" : "second",
          is_odd && mistake == Mistake::kOtherShape ? 6 : 4);
  });
  EXPECT_THAT(what, HasSubstr(" over " + axis + " "));
  // In a ring the one behind it waits for it, and others for each other.
  const bool waits_for_another = what.find("pass on") != std::string::npos && world.rank != (kOdd + 1) % kRanks;
  if (is_odd) return;
  EXPECT_THAT(what, Not(HasSubstr("the network is slower")));
  if (waits_for_another) return;
  EXPECT_THAT(what, AllOf(HasSubstr("second"), HasSubstr(c10::str("rank ", kOdd, " "))));
  // Where the other one gave up first, that is what there is to tell.
  if (mistake != Mistake::kOtherShape || what.find("closed its connection") != std::string::npos) return;
  EXPECT_THAT(what, HasSubstr("ranks must pass tensors of equal sizes"));
}

// The last stage does not come, or does forwards alone.
void expect_stage_is_named(const World& world, Mistake mistake) {
  const Mesh mesh(world, {{"pp", kRanks}});
  pipeline::Pipeline pipeline(mesh, {pipeline::Stage{[](const at::Tensor& x, int) { return x * 2; }, {}}});
  const auto step = [&](int64_t size) {
    const std::vector<at::Tensor> inputs(2, torch::ones({size}, torch::requires_grad()));
    pipeline.step(inputs, [](const at::Tensor& y, int) { return y.sum(); });
  };
  step(2);
  const bool is_odd = world.rank == kOdd;
  if (is_odd && mistake == Mistake::kAbsent) return;
  const std::string what = error_of([&] {
    if (is_odd && mistake == Mistake::kOtherCall) {
      pipeline.forward(std::vector<at::Tensor>(2));
    } else {
      step(2);
    }
  });
  if (is_odd) return;
  EXPECT_THAT(what, HasSubstr(" over pp"));
  // Stages before it wait for each other.
  if (mistake == Mistake::kOtherCall && world.rank + 1 != kOdd) return;
  EXPECT_THAT(what, HasSubstr(c10::str("rank ", kOdd, " ")));
}

// Stage 2 changes the size between microbatches, and is told; the one behind it waits for what does not come.
void expect_size_is_refused(const World& world) {
  const Mesh mesh(world, {{"pp", kRanks}});
  const auto forward = [&](const at::Tensor& x, int microbatch) {
    return world.rank == 2 && microbatch == 1 ? torch::cat({x, x}) : x * 2;
  };
  pipeline::Pipeline pipeline(mesh, {pipeline::Stage{forward, {}}});
  const std::string what = error_of([&] {
    pipeline.step(std::vector<at::Tensor>(2, torch::ones({2}, torch::requires_grad())),
                  [](const at::Tensor& y, int) { return y.sum(); });
  });
  if (world.rank == 2) {
    EXPECT_THAT(what, HasSubstr("output of stage 2: got Float of sizes [4]"));
  } else if (world.rank == 3) {
    EXPECT_THAT(what, AllOf(HasSubstr(" over pp"), HasSubstr("rank 2 ")));
  }
}

TEST_P(AxisFailure, IsNamedWithItsAxis) {
  std::vector<std::function<void(const World&)>> bodies;
  for (const auto& [axis, layer] :
       {std::pair<std::string, Layer>("tp", sum_parts), {"cp", attend}, {"cp", pass_around}, {"ep", go_to_experts}}) {
    for (const Mistake mistake : {Mistake::kAbsent, Mistake::kOtherCall, Mistake::kOtherShape}) {
      bodies.emplace_back([axis = axis, layer = layer, mistake](const World& world) {
        SCOPED_TRACE(c10::str(axis, ", mistake ", static_cast<int>(mistake)));
        expect_layer_names(world, axis, layer, mistake);
      });
    }
  }
  for (const Mistake mistake : {Mistake::kAbsent, Mistake::kOtherCall}) {
    bodies.emplace_back([mistake](const World& world) {
      SCOPED_TRACE(c10::str("pp, mistake ", static_cast<int>(mistake)));
      expect_stage_is_named(world, mistake);
    });
  }
  bodies.emplace_back(expect_size_is_refused);
  run_together(GetParam(), bodies);
}

INSTANTIATE_TEST_SUITE_P(Transports, AxisFailure, ::testing::Values("gloo", "shm", "two-level"),
                         [](const auto& info) { return info.param == "two-level" ? "two_level" : info.param; });

}  // namespace
}  // namespace fsdp::axis_failure_test
