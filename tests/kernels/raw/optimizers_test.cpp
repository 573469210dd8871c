#include "kernels/raw/flat/adamw.h"
#include "kernels/raw/flat/lion.h"
#include "kernels/raw/flat/schedule_free.h"
#include "kernels/raw/flat/sgd.h"
#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kStepCounts[] = {1, 15, 16, 17, 33, 48, 100};
constexpr double kGradientFactor = 0.25;

std::vector<double> wide(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

std::vector<float> gradient_of_step(int64_t count, int step) {
  return random_floats(count, static_cast<uint32_t>(10 + step), 2);
}

constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-6, kDecay = 0.1;

AdamWFactors adamw_factors(int step) {
  return {static_cast<float>(1 - kLr * kDecay),
          static_cast<float>(kBeta1),
          static_cast<float>(1 - kBeta1),
          static_cast<float>(kBeta2),
          static_cast<float>(1 - kBeta2),
          static_cast<float>(kLr / (1 - std::pow(kBeta1, step))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, step))),
          static_cast<float>(kEps),
          static_cast<float>(kGradientFactor)};
}

void check_adamw(int64_t count) {
  Guarded<float> weight(random_floats(count, 1)), m(std::vector<float>(static_cast<size_t>(count))), v = m;
  std::vector<double> w = wide(random_floats(count, 1)), first(w.size()), second(w.size());
  for (int step = 1; step <= 3; ++step) {
    const std::vector<float> gradient = gradient_of_step(count, step);
    adamw(weight.data(), gradient.data(), m.data(), v.data(), count, adamw_factors(step));
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i] * kGradientFactor;
      w[i] *= 1 - kLr * kDecay;
      first[i] = kBeta1 * first[i] + (1 - kBeta1) * g;
      second[i] = kBeta2 * second[i] + (1 - kBeta2) * g * g;
      w[i] -= kLr * (first[i] / (1 - std::pow(kBeta1, step))) /
              (std::sqrt(second[i] / (1 - std::pow(kBeta2, step))) + kEps);
      // Gradients are below 1/2, and steps about as large as the learning rate.
      const auto at = static_cast<int64_t>(i);
      ASSERT_NEAR(m[at], first[i], kFine * 0.5) << count << " at " << i;
      ASSERT_NEAR(v[at], second[i], kFine * second[i]) << count << " at " << i;
      ASSERT_NEAR(weight[at], w[i], kFine * (std::abs(w[i]) + kLr)) << count << " at " << i;
    }
  }
  ASSERT_TRUE(weight.is_intact() && m.is_intact() && v.is_intact()) << count;
}

TEST(RawAdamW, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kStepCounts) ASSERT_NO_FATAL_FAILURE(check_adamw(count));
  });
}

constexpr double kMomentum = 0.9, kDampening = 0.3;

SGDFactors sgd_factors(bool first) {
  const auto momentum = static_cast<float>(kMomentum), keep = static_cast<float>(1 - kDampening);
  return {static_cast<float>(kLr),
          first ? 0 : momentum,
          first ? 1 : keep,
          static_cast<float>(kDecay),
          momentum,
          static_cast<float>(kGradientFactor)};
}

void check_sgd(int64_t count, bool with_momentum, bool nesterov) {
  // The first step overwrites what the buffer holds.
  Guarded<float> weight(random_floats(count, 1)), buffer(random_floats(count, 2));
  std::vector<double> w = wide(random_floats(count, 1)), b(w.size());
  for (int step = 1; step <= 3; ++step) {
    const std::vector<float> gradient = gradient_of_step(count, step);
    sgd(weight.data(), gradient.data(), with_momentum ? buffer.data() : nullptr, count, sgd_factors(step == 1),
        nesterov);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i] * kGradientFactor + kDecay * w[i];
      b[i] = step == 1 || !with_momentum ? g : kMomentum * b[i] + (1 - kDampening) * g;
      w[i] -= kLr * (nesterov ? g + kMomentum * b[i] : b[i]);
      const auto at = static_cast<int64_t>(i);
      ASSERT_NEAR(weight[at], w[i], kFine * (std::abs(w[i]) + kLr)) << count << " at " << i;
      if (!with_momentum) continue;
      ASSERT_NEAR(buffer[at], b[i], kFine) << count << " at " << i;
    }
  }
  ASSERT_TRUE(weight.is_intact() && buffer.is_intact()) << count;
}

TEST(RawSgd, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kStepCounts) {
      ASSERT_NO_FATAL_FAILURE(check_sgd(count, false, false));
      ASSERT_NO_FATAL_FAILURE(check_sgd(count, true, false));
      ASSERT_NO_FATAL_FAILURE(check_sgd(count, true, true));
    }
  });
}

LionFactors lion_factors() {
  return {static_cast<float>(1 - kLr * kDecay), static_cast<float>(kLr),    static_cast<float>(kBeta1),
          static_cast<float>(1 - kBeta1),       static_cast<float>(kBeta2), static_cast<float>(1 - kBeta2),
          static_cast<float>(kGradientFactor)};
}

void check_lion(int64_t count) {
  Guarded<float> weight(random_floats(count, 1)), momentum(std::vector<float>(static_cast<size_t>(count)));
  std::vector<double> w = wide(random_floats(count, 1)), m(w.size());
  for (int step = 1; step <= 3; ++step) {
    std::vector<float> gradient = gradient_of_step(count, step);
    gradient.front() = 0;  // and its momentum: no sign
    lion(weight.data(), gradient.data(), momentum.data(), count, lion_factors());
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i] * kGradientFactor, direction = kBeta1 * m[i] + (1 - kBeta1) * g;
      w[i] = w[i] * (1 - kLr * kDecay) - kLr * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      m[i] = kBeta2 * m[i] + (1 - kBeta2) * g;
      const auto at = static_cast<int64_t>(i);
      ASSERT_NEAR(weight[at], w[i], kFine * (std::abs(w[i]) + kLr)) << count << " at " << i;
      ASSERT_NEAR(momentum[at], m[i], kFine * 0.5) << count << " at " << i;
    }
  }
  ASSERT_TRUE(weight.is_intact() && momentum.is_intact()) << count;
}

TEST(RawLion, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kStepCounts) ASSERT_NO_FATAL_FAILURE(check_lion(count));
  });
}

TEST(RawLion, NaNIsSeenInTheWeight) {
  for_each_isa([] {
    for (const int64_t count : {1, 8, 19}) {
      std::vector<float> weight(static_cast<size_t>(count), 1), momentum(weight.size()), gradient(weight.size(), NAN);
      lion(weight.data(), gradient.data(), momentum.data(), count, lion_factors());
      for (const float number : weight) EXPECT_TRUE(std::isnan(number)) << count;
    }
  });
}

constexpr double kShare = 0.3;

ScheduleFreeFactors schedule_free_factors(int step) {
  const double share = step == 1 ? 1 : kShare;
  return {static_cast<float>(kBeta2),
          static_cast<float>(1 - kBeta2),
          static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, step))),
          static_cast<float>(kEps),
          static_cast<float>(kDecay),
          static_cast<float>(share),
          static_cast<float>(kLr),
          static_cast<float>(kLr * (1 - kBeta1 * (1 - share))),
          static_cast<float>(kGradientFactor)};
}

// By x, the average itself.
void check_schedule_free(int64_t count) {
  // The first step overwrites what the iterate holds.
  Guarded<float> weight(random_floats(count, 1)), iterate(random_floats(count, 2)),
      squares(std::vector<float>(static_cast<size_t>(count)));
  std::vector<double> z = wide(random_floats(count, 1)), x = z, v(z.size());
  for (int step = 1; step <= 3; ++step) {
    const std::vector<float> gradient = gradient_of_step(count, step);
    schedule_free(weight.data(), gradient.data(), iterate.data(), squares.data(), count, schedule_free_factors(step),
                  step == 1);
    const double share = step == 1 ? 1 : kShare;
    for (size_t i = 0; i < z.size(); ++i) {
      const double g = gradient[i] * kGradientFactor, y = (1 - kBeta1) * z[i] + kBeta1 * x[i];
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
      const double size = std::sqrt(v[i] / (1 - std::pow(kBeta2, step))) + kEps;
      z[i] -= kLr * (g / size + kDecay * y);
      x[i] = (1 - share) * x[i] + share * z[i];
      const auto at = static_cast<int64_t>(i);
      ASSERT_NEAR(squares[at], v[i], kFine * v[i]) << count << " at " << i;
      ASSERT_NEAR(iterate[at], z[i], kFine * (std::abs(z[i]) + kLr)) << count << " at " << i;
      ASSERT_NEAR(weight[at], (1 - kBeta1) * z[i] + kBeta1 * x[i], kFine * (std::abs(z[i]) + kLr)) << count;
    }
  }
  ASSERT_TRUE(weight.is_intact() && iterate.is_intact() && squares.is_intact()) << count;
}

TEST(RawScheduleFree, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kStepCounts) ASSERT_NO_FATAL_FAILURE(check_schedule_free(count));
  });
}

// Pieces that begin at odd places, and end there.
template <class Update>
void for_each_flat_piece(int64_t count, const Update& update) {
  for (int64_t begin = 0, size = 1; begin < count; begin += size, size = size % 50 + 16)
    update(begin, std::min(size, count - begin));
}

// What shards of any size rely on.
TEST(RawAdamW, AnElementDoesNotDependOnItsPlace) {
  for_each_isa([] {
    constexpr int64_t kCount = 500;
    const std::vector<float> gradient = gradient_of_step(kCount, 1), squares = random_floats(kCount, 3);
    std::vector<float> start_v;
    for (const float root : squares) start_v.push_back(root * root);
    Guarded<float> weight(random_floats(kCount, 1)), m(random_floats(kCount, 2)), v(start_v);
    Guarded<float> weight_cut = weight, m_cut = m, v_cut = v;
    const AdamWFactors factors = adamw_factors(7);
    adamw(weight.data(), gradient.data(), m.data(), v.data(), kCount, factors);
    for_each_flat_piece(kCount, [&](int64_t at, int64_t n) {
      adamw(weight_cut.data() + at, gradient.data() + at, m_cut.data() + at, v_cut.data() + at, n, factors);
    });
    EXPECT_TRUE(weight_cut.has_bits_of(weight) && m_cut.has_bits_of(m) && v_cut.has_bits_of(v));
  });
}

void check_sgd_pieces(bool with_momentum, bool nesterov) {
  constexpr int64_t kCount = 500;
  const std::vector<float> gradient = gradient_of_step(kCount, 1);
  Guarded<float> weight(random_floats(kCount, 1)), buffer(random_floats(kCount, 2));
  Guarded<float> weight_cut = weight, buffer_cut = buffer;
  const SGDFactors factors = sgd_factors(false);
  sgd(weight.data(), gradient.data(), with_momentum ? buffer.data() : nullptr, kCount, factors, nesterov);
  for_each_flat_piece(kCount, [&](int64_t at, int64_t n) {
    sgd(weight_cut.data() + at, gradient.data() + at, with_momentum ? buffer_cut.data() + at : nullptr, n, factors,
        nesterov);
  });
  EXPECT_TRUE(weight_cut.has_bits_of(weight) && buffer_cut.has_bits_of(buffer));
}

TEST(RawSgd, AnElementDoesNotDependOnItsPlace) {
  for_each_isa([] {
    check_sgd_pieces(false, false);
    check_sgd_pieces(true, false);
    check_sgd_pieces(true, true);
  });
}

TEST(RawLion, AnElementDoesNotDependOnItsPlace) {
  for_each_isa([] {
    constexpr int64_t kCount = 500;
    const std::vector<float> gradient = gradient_of_step(kCount, 1);
    Guarded<float> weight(random_floats(kCount, 1)), momentum(random_floats(kCount, 2));
    Guarded<float> weight_cut = weight, momentum_cut = momentum;
    lion(weight.data(), gradient.data(), momentum.data(), kCount, lion_factors());
    for_each_flat_piece(kCount, [&](int64_t at, int64_t n) {
      lion(weight_cut.data() + at, gradient.data() + at, momentum_cut.data() + at, n, lion_factors());
    });
    EXPECT_TRUE(weight_cut.has_bits_of(weight) && momentum_cut.has_bits_of(momentum));
  });
}

TEST(RawScheduleFree, AnElementDoesNotDependOnItsPlace) {
  for_each_isa([] {
    constexpr int64_t kCount = 500;
    const std::vector<float> gradient = gradient_of_step(kCount, 1);
    Guarded<float> w(random_floats(kCount, 1)), z(random_floats(kCount, 2)), v(std::vector<float>(kCount, 0.1F));
    Guarded<float> w_cut = w, z_cut = z, v_cut = v;
    const ScheduleFreeFactors factors = schedule_free_factors(2);
    schedule_free(w.data(), gradient.data(), z.data(), v.data(), kCount, factors, false);
    for_each_flat_piece(kCount, [&](int64_t at, int64_t n) {
      schedule_free(w_cut.data() + at, gradient.data() + at, z_cut.data() + at, v_cut.data() + at, n, factors, false);
    });
    EXPECT_TRUE(w_cut.has_bits_of(w) && z_cut.has_bits_of(z) && v_cut.has_bits_of(v));
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
