// `fsdp launch` and its ranks, asked to stop.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>

#include "tests/app/launch/launch_script.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {
namespace {

class LaunchSignals : public ::testing::Test {
 protected:
  // Runs `traps` in each of two ranks; once both have, rank 0 runs `begin`. Then both work until a trap ends them or
  // sets `stop`; in that case they go on for a while, in which another signal would be noticed.
  CommandResult launch(const std::string& traps, const std::string& begin,
                       const std::vector<std::string>& options = {}) {
    const std::string ready = folder_ / "ready";
    return launch_script(2,
                         traps + "\n: > " + ready + "$RANK\nif [ $RANK = 0 ]; then\n" + wait_for(ready + "0") +
                             wait_for(ready + "1") + begin +
                             "\nfi\nwhile [ -z \"$stop\" ]; do sleep 0.05; done; sleep 0.3; exit 75",
                         options);
  }

  const io::TemporaryFolder folder_;
};

TEST_F(LaunchSignals, RanksSaveAndTheRunCanBeResumed) {
  const CommandResult result = launch("trap 'echo saved; exit 75' TERM", "kill -TERM $PPID", {"--max-restarts", "3"});
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_TRUE(has(result.err, "launch: asked ranks to stop; up to 30 s to save\n")) << result.err;
  EXPECT_TRUE(has(result.err, "launch: stopped by signal 15 (Terminated); the run can be resumed\n")) << result.err;
  EXPECT_FALSE(has(result.err, "restart")) << result.err;
  EXPECT_EQ(count(result.out, "saved\n"), 2) << result.out;
}

TEST_F(LaunchSignals, WarningOfSlurm) {
  const CommandResult result = launch("trap 'exit 75' USR1", "kill -USR1 $PPID", {"--grace", "12.5"});
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_TRUE(has(result.err, "up to 12.5 s to save\n")) << result.err;
  EXPECT_TRUE(has(result.err, "stopped by signal 10 (User defined signal 1); the run can be resumed\n")) << result.err;
}

TEST_F(LaunchSignals, AClosedTerminalIsARequest) {
  const CommandResult result = launch("trap 'echo saved; exit 75' TERM", "kill -HUP $PPID");
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_TRUE(has(result.err, "stopped by signal 1 (Hangup); the run can be resumed\n")) << result.err;
  EXPECT_EQ(count(result.out, "saved\n"), 2) << result.out;
}

TEST_F(LaunchSignals, UnderNohupAClosedTerminalIsNone) {
  const auto before = signal(SIGHUP, SIG_IGN);
  const CommandResult result = launch("trap 'echo saved; exit 75' TERM", "kill -HUP $PPID; sleep 0.3; stop=1");
  signal(SIGHUP, before);
  EXPECT_EQ(result.exit_code, 75);  // of rank 0, by itself
  EXPECT_FALSE(has(result.err, "stopped by signal")) << result.err;
}

TEST_F(LaunchSignals, EachIsPassedOnOnce) {
  const CommandResult result = launch(
      "trap 'echo warned; if [ $RANK = 0 ]; then kill -USR1 $PPID; kill -TERM $PPID; fi' USR1\n"
      "trap 'echo told; stop=1' TERM",
      "kill -USR1 $PPID");
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(count(result.out, "warned\n"), 2) << result.out;
  EXPECT_EQ(count(result.out, "told\n"), 2) << result.out;
  EXPECT_EQ(count(result.err, "asked ranks to stop"), 1) << result.err;
}

TEST_F(LaunchSignals, RanksThatFinishAreNoFailure) {
  const CommandResult result = launch("trap 'exit 0' TERM", "kill -TERM $PPID");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(has(result.err, "stopped by signal 15 (Terminated); all ranks ended with code 0\n")) << result.err;
}

TEST_F(LaunchSignals, RanksThatDieOfTheSignal) {
  const CommandResult result = launch("", "kill -TERM $PPID", {"--max-restarts", "3"});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(has(result.err, "launch: stopped by signal 15 (Terminated)\n")) << result.err;
}

TEST_F(LaunchSignals, RanksAreKilledAfterTheGrace) {
  const CommandResult result = launch("trap '' TERM", "kill -TERM $PPID", {"--grace", "0.3"});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(has(result.err, "stopped by signal 15 (Terminated); 2 of 2 ranks had to be killed\n")) << result.err;
  EXPECT_LT(result.seconds, 60);
}

TEST_F(LaunchSignals, ASecondOneKillsAtOnce) {
  const CommandResult result =
      launch("trap 'if [ $RANK = 0 ]; then kill -INT $PPID; fi' INT", "kill -INT $PPID", {"--grace", "1000"});
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_TRUE(has(result.err, "2 of 2 ranks had to be killed\n")) << result.err;
  EXPECT_LT(result.seconds, 60);
}

TEST_F(LaunchSignals, ARankThatCannotSaveIsNamed) {
  const CommandResult result = launch("trap 'if [ $RANK = 1 ]; then echo disk full >&2; exit 7; fi; exit 75' TERM",
                                      "kill -TERM $PPID", {"--max-restarts", "3"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_TRUE(has(result.err, "launch: rank 1 of 2 exited with code 7; all ranks were stopped")) << result.err;
  EXPECT_TRUE(has(result.err, "  | disk full")) << result.err;
  EXPECT_FALSE(has(result.err, "restart")) << result.err;
}

TEST_F(LaunchSignals, OneRankStopsAndAllAgree) {
  const std::string agreed = folder_ / "agreed";
  // Rank 0 has no trap: it would die if it were signalled too.
  const CommandResult result =
      launch_script(2, "if [ $RANK = 1 ]; then trap ': > " + agreed + "; exit 75' TERM; kill -TERM $$; fi\n" +
                           wait_for(agreed) + "sleep 0.3; echo saved; exit 75");
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_TRUE(has(result.err, "launch: rank 1 of 2 stopped on request (exit code 75); the run can be resumed\n"))
      << result.err;
  EXPECT_TRUE(has(result.out, "[0] saved\n")) << result.out;
}

TEST_F(LaunchSignals, WhatAWrapperStartedMaySave) {
  const std::string saved = folder_ / "saved";
  // The wrapper has no trap and dies at once; its child, which does the work, takes longer.
  const CommandResult result =
      launch_script(1, "/bin/sh -c \"trap 'sleep 0.5; : > " + saved +
                           "; exit 75' TERM; kill -TERM $PPID; while true; do sleep 0.05; " + "done\"; echo never");
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(std::filesystem::exists(saved));
}

TEST_F(LaunchSignals, SignalsThatTheParentIgnoresDoNotMatter) {
  // Without CHLD the launcher would never hear that a rank ended; without INT ranks could not be asked.
  const CommandResult result =
      run_command({"env", "--ignore-signal=INT,CHLD", FSDP_BINARY, "launch", "--nproc", "1", "--", "/bin/sh", "-c",
                   "trap 'exit 75' INT; kill -INT $PPID; while true; do sleep 0.05; done"});
  EXPECT_EQ(result.exit_code, 75) << result.err;
}

// Rank 1 stops; rank 0 knows it before it runs `then`.
std::string script_with_stopped_rank(const std::string& pid, const std::string& then) {
  return "if [ $RANK = 1 ]; then echo $$ > " + pid + ".new; mv " + pid + ".new " + pid + "; kill -STOP $$; fi\n" +
         wait_for(pid) + "until grep -q '^State:.*stopped' /proc/$(cat " + pid + ")/status; do sleep 0.02; done\n" +
         then;
}

TEST_F(LaunchSignals, AStoppedRankIsKilledAfterAFailure) {
  const CommandResult result =
      launch_script(2, script_with_stopped_rank(folder_ / "pid", "exit 5"), {"--grace", "1000"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(has(result.err, "launch: rank 1 of 2 does not run")) << result.err;
  EXPECT_TRUE(has(result.err, "launch: rank 0 of 2 exited with code 5")) << result.err;
  EXPECT_LT(result.seconds, 60);
}

TEST_F(LaunchSignals, AStoppedRankIsKilledAfterTheGrace) {
  const CommandResult result =
      launch_script(2,
                    script_with_stopped_rank(folder_ / "pid",
                                             "trap 'exit 75' TERM; kill -TERM $PPID; while true; do sleep 0.05; done"),
                    {"--grace", "0.5"});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(has(result.err, "1 of 2 ranks had to be killed\n")) << result.err;
}

TEST_F(LaunchSignals, ARankThatNeverStopsPrintingDoesNotKeepTheLauncher) {
  const CommandResult result = launch_script(2, "if [ $RANK = 0 ]; then exec yes; fi; exit 3");
  EXPECT_EQ(result.exit_code, 3);
}

}  // namespace
}  // namespace fsdp::app
