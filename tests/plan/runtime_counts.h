// What a run's units counted in a step, beside its plan.
#pragma once

#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "plan/report.h"

namespace fsdp::plan {

inline void expect_counts(const Report& plan, const Counters& counters) {
  EXPECT_EQ(plan.step.calls.gathers, counters.gathers);
  EXPECT_EQ(plan.step.calls.reduces, counters.reduces);
  EXPECT_EQ(plan.step.calls.gather_bytes, counters.gather_bytes);
  EXPECT_EQ(plan.step.calls.reduce_bytes, counters.reduce_bytes);
  EXPECT_EQ(plan.step.peak_unsharded_bytes, counters.peak_unsharded_bytes);
  EXPECT_EQ(plan.step.peak_reduce_bytes, counters.peak_reduce_bytes);
}

inline void expect_rest(const Report& plan, const RestingBytes& rest) {
  EXPECT_EQ(plan.memory[Part::kMainWeight], rest.main_weight);
  EXPECT_EQ(plan.memory[Part::kModelWeight], rest.model_weight);
  EXPECT_EQ(plan.memory[Part::kMainGrad], rest.main_grad);
}

}  // namespace fsdp::plan
