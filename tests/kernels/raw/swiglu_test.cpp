#include "kernels/raw/rows/swiglu.h"

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kSwigluCounts[] = {1, 15, 16, 17, 33, 48, 100};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The last gates are far out, where e^x leaves fp32.
template <class T>
std::vector<T> gates(int64_t count) {
  std::vector<T> gate = random_numbers<T>(count, 1, 10);
  const float far[] = {-1000, 1000, -95, 95, -0.0f};
  for (int64_t i = 0; i < std::min<int64_t>(5, count - 1); ++i) gate.data()[count - 1 - i] = from_float<T>(far[i]);
  return gate;
}

template <class T>
void check_swiglu_forward(int64_t count) {
  const std::vector<T> gate = gates<T>(count), up = random_numbers<T>(count, 2, 2);
  Guarded<T> y(count);
  swiglu(gate.data(), up.data(), y.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const double g = to_float(gate.data()[i]), expected = g * sigmoid(g) * to_float(up.data()[i]);
    // silu is rounded, then the product. What is smaller than 1e-30 may be lost.
    ASSERT_NEAR(y[i], expected, 1e-30 + std::abs(expected) * (kFine + 2 * kRounding<T>)) << count << " at " << i;
  }
  ASSERT_TRUE(y.is_intact()) << count;
}

TEST(RawSwiglu, EqualsTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kSwigluCounts) {
      ASSERT_NO_FATAL_FAILURE(check_swiglu_forward<float>(count));
      ASSERT_NO_FATAL_FAILURE(check_swiglu_forward<Bf16>(count));
    }
  });
}

// As models that round after every operator do; only where silu in fp32 lies at a border may the other neighbour win.
TEST(RawSwiglu, RoundsSiluBeforeTheProduct) {
  for_each_isa([] {
    constexpr int64_t kCount = 1000;
    const std::vector<Bf16> gate = random_numbers<Bf16>(kCount, 1, 4), up = random_numbers<Bf16>(kCount, 2, 2);
    Guarded<Bf16> y(kCount);
    swiglu(gate.data(), up.data(), y.data(), kCount);
    int64_t others = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double g = to_float(gate.data()[i]);
      const float silu = to_float(rounded<Bf16>(g * sigmoid(g)));
      others += y[i] != to_float(from_float<Bf16>(silu * to_float(up.data()[i])));
    }
    EXPECT_LE(others, kCount / 200);
  });
}

template <class T>
void check_swiglu_backward(int64_t count) {
  const std::vector<T> gate = gates<T>(count), up = random_numbers<T>(count, 2, 2);
  const std::vector<T> grad_y = random_numbers<T>(count, 3);
  Guarded<T> grad_gate(count), grad_up(count);
  swiglu_backward(grad_y.data(), gate.data(), up.data(), grad_gate.data(), grad_up.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const double g = to_float(gate.data()[i]), gy = to_float(grad_y.data()[i]), s = sigmoid(g);
    const double for_up = gy * g * s;
    ASSERT_NEAR(grad_up[i], for_up, 1e-30 + std::abs(for_up) * (kFine + 2 * kRounding<T>)) << count << " at " << i;
    // d silu / dg = s + g s (1 - s), whose terms cancel near g = -1.28.
    const double outer = gy * to_float(up.data()[i]), for_gate = outer * (s + g * s * (1 - s));
    const double size = std::abs(outer) * (s + std::abs(g) * s * (1 - s));
    ASSERT_NEAR(grad_gate[i], for_gate, kFine * size + 2 * kRounding<T> * std::abs(for_gate) + 1e-30)
        << count << " at " << i;
  }
  ASSERT_TRUE(grad_gate.is_intact() && grad_up.is_intact()) << count;
}

TEST(RawSwiglu, GradientsEqualTheAnalyticOnes) {
  for_each_isa([] {
    for (const int64_t count : kSwigluCounts) {
      ASSERT_NO_FATAL_FAILURE(check_swiglu_backward<float>(count));
      ASSERT_NO_FATAL_FAILURE(check_swiglu_backward<Bf16>(count));
    }
  });
}

// Threads and shards cut ranges anywhere.
template <class T>
void check_pieces() {
  constexpr int64_t kCount = 100;
  const std::vector<T> gate = gates<T>(kCount), up = random_numbers<T>(kCount, 2), gy = random_numbers<T>(kCount, 3);
  Guarded<T> y(kCount), y_cut(kCount), grad_gate(kCount), gate_cut(kCount), grad_up(kCount), up_cut(kCount);
  swiglu(gate.data(), up.data(), y.data(), kCount);
  swiglu_backward(gy.data(), gate.data(), up.data(), grad_gate.data(), grad_up.data(), kCount);
  for (int64_t begin = 0, size = 1; begin < kCount; begin += size, size = std::min<int64_t>(2 * size + 1, 40)) {
    const int64_t n = std::min(size, kCount - begin);
    swiglu(gate.data() + begin, up.data() + begin, y_cut.data() + begin, n);
    swiglu_backward(gy.data() + begin, gate.data() + begin, up.data() + begin, gate_cut.data() + begin,
                    up_cut.data() + begin, n);
  }
  ASSERT_TRUE(y_cut.has_bits_of(y) && gate_cut.has_bits_of(grad_gate) && up_cut.has_bits_of(grad_up));
}

TEST(RawSwiglu, AnElementDoesNotDependOnItsPlace) {
  for_each_isa([] {
    ASSERT_NO_FATAL_FAILURE(check_pieces<float>());
    ASSERT_NO_FATAL_FAILURE(check_pieces<Bf16>());
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
