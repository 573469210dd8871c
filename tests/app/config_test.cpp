// `fsdp config check` and `diff`, `fsdp completion`.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/app/training_fixture.h"

namespace fsdp::app::config_test {
namespace {

class ConfigVerb : public TrainingFixture {};

TEST_F(ConfigVerb, ChecksAFile) {
  const CommandResult good = run_fsdp("config check " + path("run.toml") + " --train.steps=9");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(contains(good.out, "  train.steps: 1000 -> 9\n")) << good.out;
  EXPECT_FALSE(contains(good.out, "note:")) << good.out;
  const CommandResult gone = run_fsdp("config check " + path("run.toml") + " --data.path=/none");
  EXPECT_TRUE(contains(gone.out, "note: data.path: /none is not there")) << gone.out;
  const CommandResult bad = run_fsdp("config check " + path("run.toml") + " --train.stepz=9");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(contains(bad.err, "did you mean train.steps?")) << bad.err;
}

TEST_F(ConfigVerb, ComparesFilesAndRuns) {
  ASSERT_EQ(run_fsdp(train("--train.steps=2 --train.lr=0.004")).exit_code, 0);
  const CommandResult result = run_fsdp("config diff " + path("run.toml") + " " + path("out"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "  train.steps: 6 -> 2\n  train.lr: 0.003 -> 0.004\n")) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 3) << result.out;
  EXPECT_TRUE(contains(run_fsdp("config diff " + path("out") + " " + path("out")).out, "no difference"));
  EXPECT_EQ(run_fsdp("config diff " + path("out")).exit_code, 2);
}

// What bash offers for a line, in its order.
std::string offered(const std::string& line) {
  const std::string script = "source <(" FSDP_BINARY " completion bash); COMP_LINE='" + line +
                             "'; COMP_POINT=${#COMP_LINE}; _fsdp 2>/dev/null; printf '%s ' \"${COMPREPLY[@]}\"";
  return run_command({"bash", "-c", script}, {"OMP_NUM_THREADS=1"}).out;
}

TEST(CompletionVerb, OffersVerbsOptionsKeysAndValues) {
  const std::string fsdp = FSDP_BINARY;
  EXPECT_EQ(offered(fsdp + " repo"), "report ");
  EXPECT_TRUE(contains(offered(fsdp + " "), "doctor "));
  EXPECT_EQ(offered(fsdp + " launch --nproc 2 -- trai"), "train ");
  EXPECT_EQ(offered(fsdp + " train run.toml --train.warmup_s"), "--train.warmup_steps= ");
  EXPECT_EQ(offered(fsdp + " train --shard.precision=bf"), "bf16 ");
  EXPECT_EQ(offered(fsdp + " report --li"), "--live ");
}

TEST(CompletionVerb, ScriptsAreWhatTheirShellsRead) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandResult script = run_fsdp(std::string("completion ") + shell);
    EXPECT_EQ(script.exit_code, 0);
    EXPECT_TRUE(contains(script.out, "shard.strategy")) << shell;
    if (run_command({"sh", "-c", std::string("command -v ") + shell}).exit_code != 0) continue;
    io::TemporaryFolder folder;
    io::write_text(folder / "script", script.out);
    const CommandResult read = run_command({shell, "-n", (folder / "script").string()});
    EXPECT_EQ(read.exit_code, 0) << shell << read.err;
  }
  EXPECT_EQ(run_fsdp("completion tcsh").exit_code, 2);
}

}  // namespace
}  // namespace fsdp::app::config_test
