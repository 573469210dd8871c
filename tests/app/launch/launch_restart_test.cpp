// `fsdp launch --max-restarts`.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/app/launch/launch_script.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST(LaunchRestart, AKilledRankIsStartedAgainWithAllOthers) {
  const CommandResult result = launch_script(2,
                                             "echo attempt $FSDP_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT\n"
                                             "if [ $FSDP_RESTART_COUNT = 1 ]; then exit 0; fi\n"
                                             "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 1000",
                                             {"--max-restarts", "3", "--restart-backoff", "0.1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(has(result.err, "launch: rank 1 of 2 was killed by signal 9 (Killed); restart 1 of 3 in 0.1 s\n"))
      << result.err;
  for (const char* line : {"[1] attempt 0 0\n", "[0] attempt 1 1\n", "[1] attempt 1 1\n"}) {
    EXPECT_TRUE(has(result.out, line)) << result.out;
  }
  EXPECT_EQ(count(result.err, "OMP_NUM_THREADS"), 1) << result.err;
}

TEST(LaunchRestart, NoneUnlessAskedFor) {
  const CommandResult result = launch_script(1, "exit 7");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_TRUE(has(result.err, "launch: rank 0 of 1 exited with code 7; all ranks were stopped\n")) << result.err;
}

TEST(LaunchRestart, LastingFailuresEndTheJob) {
  const CommandResult result = launch_script(1, "echo no such key >&2; exit 2", {"--max-restarts", "3"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(
      has(result.err, "; not restarted, because code 2 does not go away by itself. Its last lines:\n  | no such"))
      << result.err;
}

TEST(LaunchRestart, RestartsRunOut) {
  const CommandResult result =
      launch_script(1, "exit 7", {"--max-restarts=2", "--restart-backoff=0.01", "--min-uptime=0"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_TRUE(has(result.err, "; restart 1 of 2 in 0.01 s\n")) << result.err;
  EXPECT_TRUE(has(result.err, "; restart 2 of 2 in 0.02 s\n")) << result.err;
  EXPECT_TRUE(has(result.err, "; no restart is left (2 of 2 used)\n")) << result.err;
}

TEST(LaunchRestart, ACrashLoopIsLeft) {
  const CommandResult result =
      launch_script(1, "echo attempt; echo the reason >&2; exit 1",
                    {"--max-restarts", "10", "--restart-backoff", "0.01", "--min-uptime", "1000"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(count(result.out, "attempt\n"), 3) << result.out;
  EXPECT_TRUE(has(result.err, "gave up with 8 restarts left")) << result.err;
  EXPECT_TRUE(has(result.err, "  | the reason\n")) << result.err;
}

TEST(LaunchRestart, NewCheckpointsAreProgress) {
  const CommandResult result =
      launch_script(1,
                    "echo \"checkpoint: committed step $((10 * FSDP_RESTART_COUNT)) (1 MB) in 1 s\"\n"
                    "if [ $FSDP_RESTART_COUNT = 4 ]; then exit 0; fi; exit 7",
                    {"--max-restarts", "10", "--restart-backoff", "0", "--min-uptime", "1000"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(has(result.err, "; restart 4 of 10 in 0 s\n")) << result.err;
}

TEST(LaunchRestart, ARankThatWasAskedToStopIsStartedAgain) {
  const CommandResult result = launch_script(2, "if [ $FSDP_RESTART_COUNT = 1 ]; then exit 0; fi; exit 75",
                                             {"--max-restarts", "1", "--restart-backoff", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(has(result.err, " of 2 stopped on request (exit code 75); restart 1 of 1 in 0 s\n")) << result.err;
}

TEST(LaunchRestart, ASignalEndsTheWait) {
  const io::TemporaryFolder folder;
  const std::string log = folder / "log";
  // Something that is no rank any more signals the launcher once it says that it waits.
  const std::string started = folder / "started";
  const std::string script = "setsid /bin/sh -c \": > " + started + "; until grep -q 'restart 1 of 3 in 1000 s' " +
                             log + "; do sleep 0.02; done; kill -TERM $PPID\" > /dev/null 2>&1 &\n" +
                             wait_for(started) + "exit 5";
  const CommandResult result =
      run_command({"/bin/sh", "-c",
                   "exec \"$0\" launch --nproc 1 --max-restarts 3 --restart-backoff 1000 -- /bin/sh -c "
                   "\"$1\" 2> " +
                       log,
                   FSDP_BINARY, script});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(has(text_of(log), "launch: stopped by signal 15 (Terminated) before the restart\n")) << text_of(log);
  EXPECT_LT(result.seconds, 60);
}

TEST(LaunchRestart, NothingIsLeftOfTheLastAttempt) {
  const io::TemporaryFolder folder;
  const std::string pid = folder / "pid";
  const CommandResult result =
      launch_script(1,
                    "if [ $FSDP_RESTART_COUNT = 0 ]; then sleep 1000 & echo $! > " + pid + "; kill -9 $$; fi\n" +
                        "if kill -0 $(cat " + pid + "); then exit 3; fi",
                    {"--max-restarts", "1", "--restart-backoff", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace fsdp::app
