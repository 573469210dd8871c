#include "kernels/raw/products/panels.h"

#include <cmath>
#include <limits>

#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {
namespace {

TEST(Panels, PackingTransposesAndFillsUp) {
  for_each_isa([] {
    for (const int64_t rows : {1, 15, 16, 17, 48, 64})
      for (const int64_t depth : {1, 15, 16, 33, 64}) {
        const int64_t width = (rows + kLanes - 1) / kLanes * kLanes;
        const int64_t stride = depth + 5;
        const std::vector<float> x = random_floats(rows * stride, 1);
        std::vector<float> packed(static_cast<size_t>(depth * width), 7.0f);
        pack_panel(x.data(), stride, rows, depth, packed.data(), width);
        for (int64_t i = 0; i < depth; ++i)
          for (int64_t row = 0; row < width; ++row)
            ASSERT_EQ(packed[static_cast<size_t>(i * width + row)],
                      row < rows ? x[static_cast<size_t>(row * stride + i)] : 0)
                << rows << " x " << depth;
      }
  });
}

template <class Y>
void check_unpacking(int64_t outputs, int64_t rows) {
  const int64_t width = (rows + kLanes - 1) / kLanes * kLanes, stride = outputs + 3;
  const std::vector<float> sums = random_floats(outputs * width, 1);
  std::vector<Y> y(static_cast<size_t>(rows * stride), from_float<Y>(7));
  unpack_panel(sums.data(), outputs, width, rows, y.data(), stride);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t output = 0; output < stride; ++output) {
      const float expected = output < outputs ? sums[static_cast<size_t>(output * width + row)] : 7;
      ASSERT_EQ(to_float(y[static_cast<size_t>(row * stride + output)]), to_float(from_float<Y>(expected)))
          << outputs << " x " << rows;
    }
}

TEST(Panels, UnpackingTransposesBack) {
  for_each_isa([] {
    for (const int64_t outputs : {1, 15, 16, 17, 48})
      for (const int64_t rows : {1, 16, 17, 64}) {
        ASSERT_NO_FATAL_FAILURE(check_unpacking<float>(outputs, rows));
        ASSERT_NO_FATAL_FAILURE(check_unpacking<Bf16>(outputs, rows));
      }
  });
}

// Every bf16 survives the way to fp32 and back, and vectors round as single numbers do.
TEST(Panels, WideningAndNarrowingKeepEveryBf16) {
  for_each_isa([] {
    std::vector<Bf16> all;
    for (int bits = 0; bits < 1 << 16; ++bits) all.push_back({static_cast<uint16_t>(bits)});
    std::vector<float> wide(all.size());
    widen(all.data(), wide.data(), static_cast<int64_t>(all.size()));
    std::vector<Bf16> back(all.size());
    narrow(wide.data(), back.data(), static_cast<int64_t>(all.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(to_float(all[i])))
        ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(to_float(back[i]))) << i;
      else
        ASSERT_TRUE(back[i].bits == all[i].bits && wide[i] == to_float(all[i])) << i;
    }
  });
}

TEST(Panels, NarrowingRoundsToTheNearestEven) {
  for_each_isa([] {
    std::vector<float> values = random_floats(1000, 1, 1e3f);
    const float infinity = std::numeric_limits<float>::infinity();
    values.insert(values.end(), {0.0f, -0.0f, infinity, -infinity, 1.00390625f, 1.01171875f, 1e-40f, 3.4e38f});
    std::vector<Bf16> narrowed(values.size());
    narrow(values.data(), narrowed.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(narrowed[i].bits, from_float<Bf16>(values[i]).bits) << values[i];
    EXPECT_EQ(from_float<Bf16>(1.00390625f).bits, 0x3F80);  // halfway, to the even one below
    EXPECT_EQ(from_float<Bf16>(1.01171875f).bits, 0x3F82);  // halfway, to the even one above
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
