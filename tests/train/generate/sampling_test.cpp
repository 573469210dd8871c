#include "train/generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

constexpr int kDraws = 4000;

std::vector<float> random_logits(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The distribution that transformers' warpers leave, in their order, written out.
std::vector<double> expected_distribution(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  const auto weight = [&](size_t id) { return std::exp((logits[id] - logits[order[0]]) / options.temperature); };
  double total = 0, before = 0;
  for (const size_t id : order) total += weight(id);
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < order.size(); before += weight(order[i++]))
    if (i == 0 || (before / total < options.top_p && weight(order[i]) >= options.min_p)) p[order[i]] = weight(order[i]);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

// Pearson's statistic against `p`, over the entries that are expected often enough; impossible ones must not occur.
void expect_distribution(const std::vector<float>& logits, const SamplingOptions& options) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.draw(logits))];
  const std::vector<double> p = expected_distribution(logits, options);
  double statistic = 0;
  int bins = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0) {
      EXPECT_EQ(counts[id], 0) << id;
    }
    if (p[id] * kDraws < 5) continue;
    statistic += std::pow(counts[id] - p[id] * kDraws, 2) / (p[id] * kDraws);
    ++bins;
  }
  // Mean bins - 1, variance twice that: six deviations.
  EXPECT_LE(statistic, bins + 6 * std::sqrt(2.0 * bins));
  EXPECT_GE(bins, 1);
}

TEST(Sampling, DrawsFromTheDistributionThatTheOptionsLeave) {
  for (const size_t vocabulary : {7u, 300u, 2000u}) {
    const std::vector<float> logits = random_logits(vocabulary, 5);
    for (const SamplingOptions& options :
         std::vector<SamplingOptions>{{},
                                      {.temperature = 0.5},
                                      {.temperature = 2.0},
                                      {.top_k = 5},
                                      {.top_p = 0.7},
                                      {.temperature = 1.5, .top_p = 0.999},
                                      {.min_p = 0.1},
                                      {.temperature = 0.8, .top_k = 50, .top_p = 0.9, .min_p = 0.02},
                                      {.top_k = 4, .top_p = 0.5}}) {
      SCOPED_TRACE(testing::Message() << vocabulary << " T " << options.temperature << " k " << options.top_k << " p "
                                      << options.top_p << " min " << options.min_p);
      expect_distribution(logits, options);
    }
  }
}

TEST(Sampling, ManyCandidatesOfOneProbability) {
  const std::vector<float> flat(1000, 0.25f);  // top-p must look at most of them
  Sampler sampler({.top_p = 0.6, .seed = 3});
  int64_t largest = 0;
  for (int i = 0; i < kDraws; ++i) largest = std::max(largest, sampler.draw(flat));
  EXPECT_EQ(largest, 599);  // of equals the lower ids come first
}

TEST(Sampling, GreedyTakesTheFirstOfTheLargest) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.draw(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Sampler({.temperature = 5, .top_k = 1}).draw(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Sampler({.top_p = 1e-9}).draw(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Sampler({.min_p = 1.0}).draw(std::vector<float>{1, 3, 2.9f, 2}), 1);
}

TEST(Sampling, PenaltyOfWhatWasThere) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 2});
  const std::vector<float> positive{1, 4, 3}, negative{-5, -2, -3};
  EXPECT_EQ(sampler.draw(positive), 1);
  sampler.saw(1);
  EXPECT_EQ(sampler.draw(positive), 2);  // 4 / 2 < 3
  EXPECT_EQ(sampler.draw(negative), 2);  // -2 * 2 < -3
  sampler.saw(1);
  EXPECT_EQ(sampler.draw(std::vector<float>{1, 4, 1.9f}), 1) << "seen twice counts once";
}

TEST(Sampling, SeedDecides) {
  const std::vector<float> logits = random_logits(500, 1);
  const auto draws = [&](uint64_t seed) {
    Sampler sampler({.seed = seed});
    std::vector<int64_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.draw(logits));
    return ids;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(600, -inf);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  logits[511] = -1000;
  for (const SamplingOptions& options :
       std::vector<SamplingOptions>{{}, {.temperature = 0}, {.top_k = 3}, {.top_p = 0.5}}) {
    Sampler sampler(options);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.draw(logits), 511);
  }
  logits[511] = -inf;
  EXPECT_THROW(Sampler({}).draw(logits), Error);
}

TEST(Sampling, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = nan}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.1}), Error);
  EXPECT_THROW(Sampler({.min_p = 2}), Error);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), Error);
}

}  // namespace
}  // namespace fsdp::train
