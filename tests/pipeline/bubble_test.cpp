// How long ranks of a pipeline wait, on clocks that only count: a stage's passes take known times, and what travels
// between stages is when it was ready and comes as much later as a network of the fabric model takes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "fsdp/comm/transport/fabric_model.h"
#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::bubble_test {
namespace {

using pipeline::Order;
using pipeline::Pipeline;
using pipeline::Stage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ms of a stage; with one stage on each rank a backward takes twice as long as a forward.
constexpr double kForward = 20, kInput = 20, kWeights = 20;
constexpr double kWork = kForward + kInput + kWeights;
// 2 x 1024 tokens of 1024 features in bf16.
constexpr int64_t kMessageBytes = 2 * 1024 * 1024 * 2;

double message_ms() {
  const comm::FabricModel network{10us, 100e9};
  return std::chrono::duration<double, std::milli>(network.time_for(kMessageBytes)).count();
}

// Of this rank, and of its thread: backwards on the CPU run on the one that asks for them.
thread_local double now_ms;

void advance(double ready_ms, double takes_ms) { now_ms = std::max(now_ms, ready_ms) + takes_ms; }

enum class Place { kFirst, kLater };

struct TimedStage : torch::autograd::Function<TimedStage> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, Place place,
                            int64_t parts) {
    context->saved_data["is_first"] = place == Place::kFirst;
    context->saved_data["parts"] = parts;
    advance(place == Place::kFirst ? 0 : x.item<double>() + message_ms(), kForward / static_cast<double>(parts));
    return torch::full_like(x, now_ms) + 0 * weight;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool of_input = context->needs_input_grad(0) || context->saved_data["is_first"].toBool();
    const bool of_weights = context->needs_input_grad(1);
    const double takes = (of_input ? kInput : 0) + (of_weights ? kWeights : 0);
    advance(gradients[0].item<double>() + message_ms(),
            takes / static_cast<double>(context->saved_data["parts"].toInt()));
    return {torch::full_like(gradients[0], now_ms), torch::zeros_like(gradients[0]), {}, {}};
  }
};

// The part of the time in which the ranks wait.
double bubble_of(int ranks, int stages_per_rank, int microbatches, Order order) {
  std::mutex mutex;
  double last_ms = 0;
  run_ranks(ranks, [&](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", ranks}});
    const torch::Tensor weight = torch::zeros({1}, torch::kDouble).requires_grad_();
    std::vector<Stage> stages;
    for (int own = 0; own < stages_per_rank; ++own) {
      const Place place = own == 0 && world.rank == 0 ? Place::kFirst : Place::kLater;
      stages.push_back(
          {[=](const at::Tensor& x, int) { return TimedStage::apply(x, weight, place, stages_per_rank); }, {weight}});
    }
    Pipeline pipeline(mesh, stages, order);
    now_ms = 0;
    const std::vector<at::Tensor> inputs(static_cast<size_t>(microbatches), torch::zeros({1}, torch::kDouble));
    pipeline.step(
        inputs, [](const at::Tensor& y, int) { return y.sum(); }, pipeline::LossesAre::kAdded);
    const std::lock_guard lock(mutex);
    last_ms = std::max(last_ms, now_ms);
  });
  return 1 - microbatches * kWork / last_ms;
}

// 1F1B and GPipe: (p - 1) / (m + p - 1), interleaved stages a v-th of that wait, zero bubble a third, since each pass
// takes as long as the others.
TEST(PipelineBubble, IsThatOfTheTheoryOverTheFabricModel) {
  const struct {
    int ranks, stages_per_rank, microbatches;
    Order order;
    double shorter;
  } cases[] = {{2, 1, 4, Order::k1F1B, 1},       {4, 1, 4, Order::k1F1B, 1},        {4, 1, 12, Order::k1F1B, 1},
               {4, 1, 12, Order::kGPipe, 1},     {4, 2, 8, Order::kInterleaved, 2}, {2, 1, 4, Order::kZeroBubble, 3},
               {4, 1, 12, Order::kZeroBubble, 3}};
  for (const auto& each : cases) {
    const double waits = (each.ranks - 1) / each.shorter, expected = waits / (each.microbatches + waits);
    const double actual = bubble_of(each.ranks, each.stages_per_rank, each.microbatches, each.order);
    EXPECT_NEAR(actual / expected, 1, 0.05)
        << each.ranks << " ranks, " << each.microbatches << " microbatches, order " << static_cast<int>(each.order);
    EXPECT_GT(actual, expected) << "messages take time";
  }
}

}  // namespace
}  // namespace fsdp::bubble_test
