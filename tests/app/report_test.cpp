// `fsdp report`: a page about runs that this binary made.
#include <gtest/gtest.h>

#include "tests/app/training_fixture.h"

namespace fsdp::app::report_test {
namespace {

namespace fs = std::filesystem;

class ReportVerb : public TrainingFixture {
 protected:
  std::string page(const std::string& runs, const std::string& more = "") {
    const CommandResult result = run_fsdp("report " + runs + " -o " + path("page.html") + " " + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return io::read_text(path("page.html"));
  }
  void expect_refusal(const std::string& arguments, const std::string& part) {
    const CommandResult result = run_fsdp("report " + arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  }
};

TEST_F(ReportVerb, ShowsWhatHappenedToARun) {
  const std::string often =
      "--checkpoint.every_steps=2 --train.on_nonfinite=skip --sample.every_steps=2 --sample.prompts=line ";
  ASSERT_EQ(launch_fsdp(2, train(often + "--train.steps=3")).exit_code, 0);
  fs::remove_all(path("out/model"));
  const CommandResult more =
      launch_fsdp(2, train(often + "--resume=auto"), {"FSDP_FAULT=inject@value.loss:hit=2;inject@value.loss:hit=3"});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  std::vector<std::string> kinds;
  for (const auto& event : read_lines(path("out/events.jsonl"))) kinds.push_back(event["event"]);
  const std::vector<std::string> expected{"started", "committed", "committed", "ended",     "resumed",
                                          "started", "committed", "skipped",   "committed", "ended"};
  EXPECT_EQ(kinds.size(), expected.size());
  const std::string html = page(path("out"));
  for (const char* part :
       {"finished", "6 of 6", "1 resume, 1 skip", "step skipped", "resumed from a checkpoint", "held out",
        "train.batch_sequences", "Texts that the models wrote", "Where a step goes", "</html>"})
    EXPECT_TRUE(contains(html, part)) << part;
  EXPECT_FALSE(contains(html, "http-equiv=\"refresh\""));
}

TEST_F(ReportVerb, LiveEndsWithTheRun) {
  ASSERT_EQ(run_fsdp(train("--train.steps=2")).exit_code, 0);
  const std::string html = page(path("out"), "--live --every 1");
  EXPECT_TRUE(contains(html, "</html>"));
  EXPECT_FALSE(contains(html, "http-equiv=\"refresh\"")) << "nothing new will come";
}

TEST_F(ReportVerb, AFailedRunSaysWhy) {
  const CommandResult failed = run_fsdp(train(), {"FSDP_FAULT=inject@value.loss:hit=3;inject@value.loss:hit=4"});
  ASSERT_EQ(failed.exit_code, 6) << failed.err;
  const std::string html = page(path("out"));
  EXPECT_TRUE(contains(html, "not finite, computed twice"));
  EXPECT_TRUE(contains(html, ">failed<"));
}

TEST_F(ReportVerb, RefusesWhatIsNoRun) {
  expect_refusal("", "RUN is required");
  expect_refusal(path("nothing"), "got nothing there, expected the output.folder of a training");
  expect_refusal(path("text"), "got a folder without metrics.jsonl and config.toml");
  expect_refusal("a b c d e f g h i", "got 9 runs, expected at most 8");
  expect_refusal(path("text") + " --every 0", "--every");
  EXPECT_FALSE(fs::exists("report.html"));
}

}  // namespace
}  // namespace fsdp::app::report_test
