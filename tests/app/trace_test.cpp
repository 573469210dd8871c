// `train.profile_steps` and `fsdp trace`.
#include <gtest/gtest.h>

#include "tests/app/training_fixture.h"

namespace fsdp::app::trace_test {
namespace {

class TraceVerb : public TrainingFixture {};

TEST_F(TraceVerb, DrawsARecordedStep) {
  ASSERT_EQ(launch_fsdp(2, train("--train.profile_steps=4-5")).exit_code, 0);
  const CommandResult result = run_fsdp("trace " + path("out"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"rank 0, step 5: ", "rank 1, step 5: ", "forward", "waits, the longest first:", "step.svg"})
    EXPECT_TRUE(contains(result.out, part)) << part << result.out;
  const std::string svg = io::read_text(path("out/step.svg"));
  for (const char* part : {"gather", "layers.3", "optimizer", "</svg>"}) EXPECT_TRUE(contains(svg, part)) << part;
  const CommandResult one = run_fsdp("trace " + path("out/trace.json") + " --step 4 --rank 1 -o " + path("one.svg"));
  EXPECT_TRUE(contains(one.out, "rank 1, step 4: ")) << one.out << one.err;
  EXPECT_FALSE(contains(one.out, "rank 0")) << one.out;
}

TEST_F(TraceVerb, RefusesWhatWasNotRecorded) {
  const auto expect = [&](const std::string& arguments, const std::string& part) {
    const CommandResult result = run_fsdp(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  };
  expect(train("--train.profile_steps=5-4"), "train.profile_steps");
  expect(train("--train.profile_steps=1-21"), "train.profile_steps");
  ASSERT_EQ(run_fsdp(train("--train.profile_steps=3")).exit_code, 0);
  expect("trace " + path("out") + " --step 4", "got 4, expected one that rank 0 recorded: 3");
  expect("trace " + path("out") + " --rank 2", "rank: got 2");
  expect("trace " + path("data"), "train.profile_steps");
}

}  // namespace
}  // namespace fsdp::app::trace_test
