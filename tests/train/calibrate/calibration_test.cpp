#include "train/calibrate/calibration.h"

#include <gtest/gtest.h>

#include "fsdp/base/error.h"
#include "plan/time/decoder_work.h"
#include "plan/time/hardware_file.h"
#include "plan/time/step_time.h"

namespace fsdp::train::calibration_test {
namespace {

// How fast it is nobody can say here; that the planner can work with it, and that a file keeps it.
TEST(Calibration, GivesHardwareThatThePlannerTakes) {
  for (const c10::ScalarType dtype : {c10::kFloat, c10::kBFloat16}) {
    const plan::time::Hardware hardware = calibrate_cpu(dtype, 0.3);
    const bool is_fp32 = dtype == c10::kFloat;
    ASSERT_NO_THROW(check(hardware));
    ASSERT_EQ(hardware.peak_flops.size(), 1u);
    EXPECT_EQ(hardware.peak_flops.begin()->first, is_fp32 ? plan::time::Dtype::kFp32 : plan::time::Dtype::kBf16);
    EXPECT_EQ(hardware.execution, plan::time::Execution::kProgramComputes);
    EXPECT_EQ(plan::time::parse_hardware(to_json(hardware), "test"), hardware);
    plan::time::DecoderShape shape{512, 64, 128, 2, 4, 4, 16, plan::time::Mlp::kGated, false, 0, 0, {}};
    plan::time::DecoderSetup setup;
    setup.sequence_length = 64;
    setup.dtype = hardware.peak_flops.begin()->first;
    EXPECT_GT(predict(decoder_work(shape, setup), hardware).mfu, 0);
  }
}

TEST(Calibration, OtherDtypesAreRefused) {
  try {
    calibrate_cpu(c10::kHalf, 0.1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_STREQ(error.what(), "[calibrate] dtype: got Half, expected Float or BFloat16.");
  }
}

}  // namespace
}  // namespace fsdp::train::calibration_test
