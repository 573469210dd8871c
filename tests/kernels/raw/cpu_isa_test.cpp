#include "kernels/raw/cpu_isa.h"

#include "kernels/raw/products/gemm.h"
#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

TEST(CpuIsas, HaveNamesThatAreFoundAgain) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kSse4, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kNeon})
    EXPECT_EQ(find_cpu_isa(name_of(isa)), isa);
  EXPECT_EQ(find_cpu_isa("avx3"), std::nullopt);
}

TEST(CpuIsas, TheBestIsInUseUntilOneIsHeld) {
  const std::vector<CpuIsa> available = available_cpu_isas();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(cpu_isa(), available.back());
  hold_cpu_isa(available.front());
  EXPECT_EQ(cpu_isa(), available.front());
  EXPECT_EQ(available_cpu_isas(), available);
  release_cpu_isa();
  EXPECT_EQ(cpu_isa(), available.back());
}

// Without multiply-adds a product is rounded before it is added; with them 2^-24 of it survives.
TEST(CpuIsas, AreWhatKernelsRunWith) {
  const float a = 1 + 0x1p-12f, minus_square = -(1 + 0x1p-11f);
  const std::vector<float> left = {1, a};
  for_each_isa([&] {
    if (cpu_isa() != CpuIsa::kSse4 && cpu_isa() != CpuIsa::kAvx2) return;
    std::vector<float> b(2 * kLanes, minus_square), c(kLanes);
    for (int64_t i = kLanes; i < 2 * kLanes; ++i) b[static_cast<size_t>(i)] = a;
    small_gemm(1, kLanes, 2, {left.data(), 2, 1}, b.data(), kLanes, c.data(), kLanes, false);
    EXPECT_EQ(c[0], cpu_isa() == CpuIsa::kSse4 ? 0.0f : 0x1p-24f);
  });
}

#if defined(__x86_64__)
TEST(CpuIsas, OfThisProcessorAreThoseItNames) {
  const std::vector<CpuIsa> available = available_cpu_isas();
  const auto has = [&](CpuIsa isa) { return std::find(available.begin(), available.end(), isa) != available.end(); };
  EXPECT_EQ(has(CpuIsa::kSse4), static_cast<bool>(__builtin_cpu_supports("sse4.2")));
  EXPECT_EQ(has(CpuIsa::kAvx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_FALSE(has(CpuIsa::kNeon));
}
#endif

}  // namespace
}  // namespace fsdp::kernels::raw
