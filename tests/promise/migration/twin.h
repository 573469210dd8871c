// The unsharded model that the programs of docs/migration.md are held against.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {

inline constexpr double kRate = 0.1;
inline constexpr double kMomentum = 0.9;

// LibTorch's own training on whole batches.
struct Twin {
  explicit Twin(std::shared_ptr<BlockModel> start = make_block_model())
      : model(std::move(start)), optimizer(model->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum)) {}

  void backward(uint64_t seed, double factor = 1) { (factor * loss_of(*model, batch(seed))).backward(); }
  void step(double max_norm = std::numeric_limits<double>::infinity()) {
    torch::nn::utils::clip_grad_norm_(model->parameters(), max_norm);
    optimizer.step();
    optimizer.zero_grad();
  }

  std::shared_ptr<BlockModel> model;
  torch::optim::SGD optimizer;
};

inline torch::Tensor share_loss(const World& world, BlockModel& model, uint64_t seed) {
  return loss_of(model, share_of(world, batch(seed)));
}

// Three steps with clipping, as every peer's first example has them.
template <class Optimizer>
void train(const World& world, BlockModel& model, Optimizer& optimizer) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    share_loss(world, model, seed).backward();
    clip_grad_norm_(model, 0.2);
    optimizer.step();
    zero_grad(model);
  }
}

inline void train(Twin& twin) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    twin.backward(seed);
    twin.step(0.2);
  }
}

// Of a model that started as make_block_model() starts.
inline void expect_trains_as_unsharded(const World& world, BlockModel& model) {
  Twin twin;
  SGD optimizer(parameters(model), {.lr = kRate, .momentum = kMomentum});
  train(world, model, optimizer);
  train(twin);
  expect_same_weights(model, *twin.model);
}

// How many ranks have, and update, each element of the model.
inline int64_t copies_of_main_weights(const World& world, const torch::nn::Module& model) {
  int64_t mine = 0, whole = 0;
  for (const torch::Tensor& leaf : parameters(model)) {
    mine += leaf.numel();
    whole += c10::multiply_integers(logical_sizes(leaf));
  }
  const int64_t all = sum_over_ranks(world, torch::full({1}, mine, torch::kLong)).item<int64_t>();
  EXPECT_EQ(all % whole, 0);
  return all / whole;
}

// What a step of the model, the optimizer included, counted once orders are recorded.
inline Counters counters_of_a_step(const World& world, BlockModel& model, Unit root, int num_microbatches = 1) {
  SGD optimizer(parameters(model), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    root.reset_counters();
    for (int i = 0; i < num_microbatches; ++i) {
      const Microbatch scope(root, i + 1 == num_microbatches);
      share_loss(world, model, 1).backward();
    }
    optimizer.step();
    zero_grad(model);
  }
  return root.counters();
}

// Where ranks gather weights at all, they did so `expected` times.
inline void expect_gathers(const Counters& counters, int64_t expected) {
  EXPECT_EQ(counters.gathers, one_copy_of_weights() ? 0 : expected);
}

}  // namespace fsdp::testing
