// Tests of raw kernels run once for each instruction set that the machine has.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/raw/bf16.h"
#include "kernels/raw/cpu_isa.h"

namespace fsdp::kernels::raw {

// A failure names the set; afterwards the best one is in use again.
template <class Body>
void for_each_isa(const Body& body) {
  for (const CpuIsa isa : available_cpu_isas()) {
    SCOPED_TRACE(std::string("instruction set ") + std::string(name_of(isa)));
    hold_cpu_isa(isa);
    ASSERT_EQ(cpu_isa(), isa);
    body();
  }
  release_cpu_isa();
}

// The same numbers wherever the test runs.
inline std::vector<float> random_floats(int64_t count, uint32_t seed, float scale = 1) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 engine(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values)
    value = scale * (static_cast<float>(engine() >> 8) / static_cast<float>(1 << 23) - 1);  // [-scale, scale)
  return values;
}

inline std::vector<Bf16> round_all(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(from_float<Bf16>(value));
  return rounded;
}

}  // namespace fsdp::kernels::raw
