// Batches and sequences that grow, against their formulas step by step.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fsdp/base/error.h"
#include "train/config/batch_ramp.h"
#include "train/config/config_file.h"
#include "train/config/lr_schedule.h"
#include "train/config/sequence_ramp.h"

namespace fsdp::train {
namespace {

TrainConfig growing(int64_t first, int64_t batch, int64_t steps) {
  TrainConfig config;
  config.batch_sequences = batch;
  config.batch_warmup_sequences = first;
  config.batch_warmup_steps = steps;
  return config;
}

TEST(BatchRamp, FollowsItsFormula) {
  struct Case {
    int64_t first, batch, steps;
  };
  for (const auto& [first, batch, steps] :
       {Case{8, 32, 10}, Case{1, 7, 20}, Case{4, 8, 1}, Case{2, 64, 5}, Case{16, 48, 3}, Case{3, 9, 1000}}) {
    SCOPED_TRACE(std::to_string(first) + " to " + std::to_string(batch) + " in " + std::to_string(steps));
    const BatchRamp ramp(growing(first, batch, steps));
    const int64_t levels = batch / first;
    int64_t consumed = 0, asked = 1;
    for (int64_t step = 0; step < 2 * steps + 5; ++step) {
      const int64_t expected = step >= steps ? batch : first * (1 + step * (levels - 1) / steps);
      EXPECT_EQ(ramp.sequences(step), expected) << step;
      EXPECT_EQ(ramp.consumed(step), consumed) << step;
      consumed += expected;
      for (; asked <= consumed; ++asked) EXPECT_EQ(ramp.steps_for(asked), step + 1) << asked;
    }
    EXPECT_EQ(ramp.sequences(0), first);
    EXPECT_LT(ramp.sequences(steps - 1), batch);
    EXPECT_EQ(ramp.steps_for(0), 0);
  }
}

TEST(BatchRamp, IsFlatUnlessToldOtherwise) {
  TrainConfig config;
  config.batch_sequences = 12;
  const BatchRamp ramp(config);
  EXPECT_TRUE(ramp.is_flat());
  EXPECT_EQ(ramp.sequences(0), 12);
  EXPECT_EQ(ramp.consumed(7), 84);
  EXPECT_EQ(ramp.steps_for(85), 8);
}

TEST(BatchRamp, TokensBecomeSteps) {
  Config config;
  config.data.sequence_length = 10;
  config.train = growing(2, 6, 4);  // 2, 2, 4, 4, 6, ... sequences
  config.train.steps = 0;
  config.train.warmup_tokens = 80;
  config.train.max_tokens = 181;
  EXPECT_EQ(resolve_tokens(config).warmup_steps, 3);
  EXPECT_EQ(resolve_tokens(config).steps, 6);
}

TEST(SequenceRamp, CutsIntoFewerAndFewerPieces) {
  DataConfig config;
  config.sequence_length = 64;
  config.sequence_warmup_length = 10;
  config.sequence_warmup_steps = 27;  // 2 tokens a step
  const SequenceRamp ramp(config);
  for (int64_t step = 0; step < 40; ++step) {
    const int64_t limit = step < 27 ? 10 + 2 * step : 64;
    EXPECT_EQ(ramp.pieces(step), (64 + limit - 1) / limit) << step;
  }
  EXPECT_EQ(SequenceRamp(DataConfig{}).pieces(0), 1);
}

// The message of the error.
std::string refusal_of(const std::vector<std::string>& keys) {
  try {
    load_config("", keys);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Warmups, AreRefusedWhereTheyMakeNoSense) {
  const auto expect_refusal = [](const std::vector<std::string>& keys, const std::string& part) {
    const std::string message = refusal_of(keys);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const std::string first = "--train.batch_warmup_sequences=4", steps = "--train.batch_warmup_steps=10";
  EXPECT_EQ(refusal_of({first, steps}), "no error");
  expect_refusal({first}, "train.batch_warmup_sequences: got 4 with train.batch_warmup_steps = 0");
  expect_refusal({steps}, "train.batch_warmup_steps: got 10 with train.batch_warmup_sequences = 0");
  expect_refusal({first, steps, "--train.batch_sequences=18"}, "got 4 for a batch of 18 sequences");
  expect_refusal({first, steps, "--train.batch_sequences=4"}, "got 4 for a batch of 4 sequences");
  expect_refusal({first, steps, "--train.world_invariant=true"}, "train.world_invariant");
  expect_refusal({first, steps, "--mesh.pp=2"}, "mesh.pp = 2");
  expect_refusal({first, steps, "--train.fit_minutes=1"}, "train.fit_minutes");
  expect_refusal({"--data.sequence_warmup_steps=3"}, "data.sequence_warmup_length");
  expect_refusal({"--data.sequence_warmup_steps=3", "--data.sequence_warmup_length=512"},
                 "got 512 for data.sequence_length = 512");
  expect_refusal({"--train.eval_weights=ema"}, "set train.ema");
}

TEST(Warmups, BatchInTokens) {
  EXPECT_EQ(load_config("", {"--train.batch_tokens=65536"}).train.batch_sequences, 128);
  EXPECT_NE(refusal_of({"--train.batch_tokens=1000"}).find("Set it to 512 or 1024."), std::string::npos);
}

}  // namespace
}  // namespace fsdp::train
