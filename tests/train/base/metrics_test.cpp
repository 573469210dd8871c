#include "train/base/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace fsdp::train {
namespace {

StepMetrics example() {
  StepMetrics m;
  m.step = 120;
  m.steps = 2000;
  m.tokens = 1000;
  m.loss = 2.3141;
  m.grad_norm = 0.8249;
  m.lr = 3e-4;
  m.step_ms = 12.5;
  m.data_ms = 0.05;
  m.mfu = 0.381;
  m.tokens_per_s = 41210.4;
  m.num_ranks = 2;
  m.eta_s = 2470;
  m.memory.resident = int64_t{812} << 20;
  return m;
}

TEST(Metrics, ProgressLine) {
  EXPECT_EQ(progress_line(example()),
            "step 120/2000 loss 2.314 gnorm 0.82 lr 3.0e-4 | 41,210 tok/s 38.1% mfu | eta 00:41:10 | mem 812.0 MiB | "
            "data 0.4%");
}

TEST(Metrics, LiveLine) {
  StepMetrics m = example();
  EXPECT_EQ(live_line(m),
            "step 120/2000 [>       ] loss 2.314 41,210 tok/s eta 00:41:10 | gnorm 0.82 lr 3.0e-4 | 38.1% mfu | "
            "mem 812.0 MiB | data 0.4%");
  m.step = 1000;
  m.slowest = {3, 0.123};
  const std::string line = live_line(m);
  EXPECT_EQ(line.substr(0, line.find(" |")),
            "step 1000/2000 [====>   ] loss 2.314 41,210 tok/s eta 00:41:10 rank 3 +12%");
  EXPECT_LE(line.find(" |") + std::string("[0] ").size(), 79U) << "what matters most fits a terminal of 80 columns";
  m.step = 2000;
  EXPECT_EQ(live_line(m).substr(15, 10), "[========]");
  EXPECT_EQ(nlohmann::json::parse(to_json(m))["slowest_rank"]["rank"], 3);
  EXPECT_FALSE(nlohmann::json::parse(to_json(example())).contains("slowest_rank"));
}

TEST(Metrics, TellTheLossScaleWhereThereIsOne) {
  StepMetrics m = example();
  m.scaling = {65536, 0};
  EXPECT_NE(progress_line(m).find(" lr 3.0e-4 scale 65536 | "), std::string::npos);
  m.scaling = {32768, 2};
  EXPECT_NE(progress_line(m).find(" lr 3.0e-4 scale 32768 (2 skipped) | "), std::string::npos);
  const auto json = nlohmann::json::parse(to_json(m));
  EXPECT_EQ(json["loss_scale"]["scale"], 32768);
  EXPECT_EQ(json["loss_scale"]["overflows"], 2);
  EXPECT_FALSE(nlohmann::json::parse(to_json(example())).contains("loss_scale"));
}

TEST(Metrics, JsonHasTheDocumentedFields) {
  const auto json = nlohmann::json::parse(to_json(example()));
  for (const char* key : {"schema", "step", "steps", "tokens", "loss", "grad_norm", "lr", "step_ms", "data_ms",
                          "tokens_per_s", "tokens_per_s_per_rank", "mfu", "memory", "comm"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"resident_bytes", "peak_bytes", "params", "grads", "optimizer", "activations", "comm"}) {
    EXPECT_TRUE(json["memory"].contains(key)) << key;
  }
  for (const char* key : {"gathers", "reduces", "bytes", "exposed_ms"}) {
    EXPECT_TRUE(json["comm"].contains(key)) << key;
  }
  EXPECT_EQ(json["tokens_per_s_per_rank"], 41210.4 / 2);
  EXPECT_EQ(json["mfu"], 0.381);
}

TEST(Metrics, NotANumberIsNull) {
  StepMetrics m = example();
  m.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(to_json(m))["loss"].is_null());
}

TEST(Metrics, HeldoutLossPerByte) {
  const HeldoutLoss loss{.nats = 138.62943611198907, .targets = 110, .bytes = 100};
  EXPECT_DOUBLE_EQ(loss.nats_per_byte(), 1.3862943611198907);
  EXPECT_NEAR(loss.bits_per_byte(), 2.0, 1e-12);
  EXPECT_NEAR(loss.perplexity(), std::exp(138.62943611198907 / 110), 1e-12);
  EXPECT_EQ(describe(loss), "loss 1.2603, perplexity 3.5264, 2.0000 bits per byte (100 bytes)");
  const auto json = nlohmann::json::parse(to_json(7, loss));
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["heldout"]["perplexity"], loss.perplexity());
}

TEST(Metrics, HeldoutLossOfUnknownBytes) {
  const HeldoutLoss loss{.nats = 110, .targets = 110, .bytes = 0};
  EXPECT_EQ(describe(loss), "loss 1.0000, perplexity 2.7183");
  EXPECT_TRUE(nlohmann::json::parse(to_json(7, loss))["heldout"]["bits_per_byte"].is_null());
}

}  // namespace
}  // namespace fsdp::train
