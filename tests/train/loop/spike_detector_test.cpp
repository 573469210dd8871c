#include "train/loop/spike_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

TEST(SpikeDetector, LimitsAreMedianAndDeviations) {
  SpikeDetector detector(5, 10);
  for (const double loss : {3.0, 1.0, 2.0, 5.0, 4.0}) detector.add(loss, 10 * loss);
  EXPECT_FALSE(detector.check(13, 130)) << "median 3, MAD 1";
  const auto spike = detector.check(13.001, 30);
  ASSERT_TRUE(spike);
  EXPECT_DOUBLE_EQ(spike->loss_limit, 13);
  EXPECT_DOUBLE_EQ(spike->grad_norm_limit, 130);
  EXPECT_TRUE(detector.check(3, 131)) << "the norm alone";
}

TEST(SpikeDetector, WaitsForAFullWindowAndForgets) {
  SpikeDetector detector(4, 5);
  for (int i = 0; i < 3; ++i) detector.add(1, 1);
  EXPECT_FALSE(detector.check(1000, 1000));
  detector.add(1, 1);
  EXPECT_TRUE(detector.check(1000, 1000));
  for (int i = 0; i < 4; ++i) detector.add(1000, 1000);
  EXPECT_FALSE(detector.check(1000, 1000)) << "what lasts is no spike";
}

TEST(SpikeDetector, ABitMoreThanUsualIsNoSpike) {
  SpikeDetector detector(8, 10);
  for (int i = 0; i < 8; ++i) detector.add(2, 0.5);
  EXPECT_FALSE(detector.check(2 * 1.049, 0.5));
  EXPECT_TRUE(detector.check(2 * 1.051, 0.5));
  EXPECT_FALSE(detector.check(2, 0.5 * 1.99));
  EXPECT_TRUE(detector.check(2, 0.5 * 2.01));
}

// A falling, noisy curve raises no alarm in many steps; ten times its noise does.
TEST(SpikeDetector, NoiseRaisesNoAlarm) {
  constexpr unsigned kSeed = 7;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<double> noise(0, 0.05);
  SpikeDetector detector(128, 10);
  int alarms = 0;
  for (int step = 0; step < 5000; ++step) {
    const double loss = 2 + 4 * std::exp(-step / 500.0) + noise(random);
    const double norm = 0.5 * std::exp(4 * noise(random));
    alarms += detector.check(loss, norm) ? 1 : 0;
    detector.add(loss, norm);
  }
  EXPECT_EQ(alarms, 0) << "seed " << kSeed;
  EXPECT_TRUE(detector.check(2.5, 0.5));
}

TEST(SpikeDetector, StateIsKeptDigitForDigit) {
  SpikeDetector detector(3, 2);
  for (const double value : {0.1, 1.0 / 3, 1e-300, 0.1 + 0.2}) detector.add(value, value * 3);
  SpikeDetector other(3, 2);
  other.add(99, 99);
  other.restore(detector.to_json());
  EXPECT_EQ(other.to_json(), detector.to_json());
  EXPECT_EQ(other.check(1, 1)->loss_limit, detector.check(1, 1)->loss_limit);
  SpikeDetector shorter(2, 2);
  shorter.restore(detector.to_json());
  SpikeDetector newest(2, 2);
  newest.add(1e-300, 1e-300 * 3);
  newest.add(0.1 + 0.2, (0.1 + 0.2) * 3);
  EXPECT_EQ(shorter.to_json(), newest.to_json());
  other.restore("");
  EXPECT_EQ(other.to_json(), SpikeDetector(3, 2).to_json());
}

TEST(SpikeDetector, RefusesWhatIsNoState) {
  for (const char* json : {"{", "[]", "{}", R"({"loss":[1],"grad_norm":[]})", R"({"loss":["x"],"grad_norm":[1]})",
                           R"({"loss":[null],"grad_norm":[1]})", "7"}) {
    SpikeDetector detector(3, 2);
    EXPECT_THROW(detector.restore(json), Error) << json;
  }
}

TEST(SpikeDetector, OffNeverFindsAny) {
  SpikeDetector detector(0, 10);
  for (int i = 0; i < 10; ++i) detector.add(1, 1);
  EXPECT_FALSE(detector.check(1e9, 1e9));
}

}  // namespace
}  // namespace fsdp::train
