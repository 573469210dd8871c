// `fsdp launch`: what ranks get, and what becomes of a job of which one fails.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/app/launch/launch_script.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {
namespace {

TEST(Launch, RanksGetTheVariablesOfTorchrun) {
  const CommandResult result = launch_script(
      3, "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $FSDP_LAUNCH; test $MASTER_PORT -gt 1023");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line : {"[0] 0 3 0 3 127.0.0.1 1\n", "[1] 1 3 1 3 127.0.0.1 1\n", "[2] 2 3 2 3 127.0.0.1 1\n"}) {
    EXPECT_TRUE(has(result.out, line)) << result.out;
  }
}

TEST(Launch, RanksGetASecretOfTheirJob) {
  const std::string script = "echo secret $FSDP_JOB_SECRET.";
  const auto secret_of = [&](const CommandResult& result, int rank) {
    const std::string before = "[" + std::to_string(rank) + "] secret ";
    const size_t at = result.out.find(before);
    return at == std::string::npos
               ? ""
               : result.out.substr(at + before.size(), result.out.find('.', at) - at - before.size());
  };
  const CommandResult first = launch_script(2, script), second = launch_script(2, script);
  EXPECT_EQ(secret_of(first, 0).size(), 64U) << first.out;
  EXPECT_EQ(secret_of(first, 0), secret_of(first, 1));
  EXPECT_NE(secret_of(first, 0), secret_of(second, 0));
  EXPECT_FALSE(has(first.err, secret_of(first, 0)));
  const CommandResult given = launch_script(2, script, {}, {"FSDP_JOB_SECRET=given by the user"});
  EXPECT_EQ(secret_of(given, 1), "given by the user");
}

TEST(Launch, ASecretThatOthersMayReadIsRefused) {
  const io::TemporaryFolder folder;
  const std::string file = folder / "secret";
  io::write_text(file, "the secret of this job");
  chmod(file.c_str(), 0644);
  const CommandResult result = launch_script(2, "true", {}, {"FSDP_JOB_SECRET_FILE=" + file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(has(result.err, "other users may read or write it")) << result.err;
  chmod(file.c_str(), 0600);
  // Ranks read the same file.
  const CommandResult read = launch_script(1, "echo secret $FSDP_JOB_SECRET.", {}, {"FSDP_JOB_SECRET_FILE=" + file});
  EXPECT_TRUE(has(read.out, "[0] secret .")) << read.out << read.err;
}

TEST(Launch, AStrangerAtTheStoreIsToldOfAndTheJobGoesOn) {
  const CommandResult result = launch_script(
      2,
      "bash -c 'exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT; echo GET / HTTP/1.1 >&3; cat <&3 >/dev/null'; echo went on");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.err, "launch: the store of the job refused a connection from 127.0.0.1:"), 1) << result.err;
  EXPECT_EQ(count(result.out, "went on"), 2) << result.out;
}

TEST(Launch, SetsThreadsAndSaysSo) {
  const CommandResult chosen = launch_script(2, "echo threads $OMP_NUM_THREADS");
  EXPECT_TRUE(has(chosen.err, "launch: 2 ranks with OMP_NUM_THREADS=")) << chosen.err;
  EXPECT_FALSE(has(chosen.out, "threads \n"));
  std::vector<std::string> words{FSDP_BINARY, "launch", "--nproc=2", "/bin/sh", "-c", "echo threads $OMP_NUM_THREADS"};
  const CommandResult kept = run_command(words, {"OMP_NUM_THREADS=7"});
  EXPECT_TRUE(has(kept.out, "[1] threads 7")) << kept.out;
  EXPECT_FALSE(has(kept.err, "OMP_NUM_THREADS"));
}

// As GCC's OpenMP says when it is loaded.
TEST(Launch, ThreadsThatWaitSoonSleepUnlessTheUserChose) {
  const auto says = [](const std::string& chosen) {
    return run_fsdp("--version", {"OMP_DISPLAY_ENV=verbose", chosen}).err;
  };
  if (!has(says("CHOSEN=none"), "GOMP_SPINCOUNT")) GTEST_SKIP() << "LibTorch has another OpenMP than GCC's";
  EXPECT_TRUE(has(says("CHOSEN=none"), "GOMP_SPINCOUNT = '10000'")) << says("CHOSEN=none");
  EXPECT_TRUE(has(says("GOMP_SPINCOUNT=77"), "GOMP_SPINCOUNT = '77'"));
  EXPECT_TRUE(has(says("OMP_WAIT_POLICY=passive"), "GOMP_SPINCOUNT = '0'"));
}

TEST(Launch, ProgramsOfOthersHaveShortWaitsTooUnlessTheUserChose) {
  const auto says = [](const std::string& chosen) {
    std::vector<std::string> words{FSDP_BINARY, "launch", "--nproc=1", "/bin/sh", "-c", "echo waits $GOMP_SPINCOUNT."};
    return run_command(words, {chosen}).out;
  };
  EXPECT_TRUE(has(says("CHOSEN=none"), "waits 10000.")) << says("CHOSEN=none");
  EXPECT_TRUE(has(says("GOMP_SPINCOUNT=77"), "waits 77."));
  EXPECT_TRUE(has(says("OMP_WAIT_POLICY=passive"), "waits ."));
}

TEST(Launch, NamesTheFirstFailureAndStopsTheOthers) {
  const CommandResult result = launch_script(3, "if [ $RANK = 1 ]; then echo why it failed >&2; exit 3; fi; sleep 100");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(has(result.err, "launch: rank 1 of 3 exited with code 3")) << result.err;
  EXPECT_TRUE(has(result.err, "  | why it failed")) << result.err;
  EXPECT_LT(result.seconds, 30);
}

TEST(Launch, ALostPeerIsNotTheCause) {
  // Rank 0 notices first that rank 1 is gone (exit code 5) and is reaped before it.
  const CommandResult result = launch_script(2, "if [ $RANK = 0 ]; then exit 5; fi; sleep 0.5; exit 6");
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_TRUE(has(result.err, "rank 1 of 2 exited with code 6")) << result.err;
}

TEST(Launch, AMistakeOfAllRanksIsToldByTheFirstThatEnds) {
  // Ranks agree on the mistake. Rank 0 does not get to tell it: it is stopped once rank 1 has ended.
  const CommandResult result =
      launch_script(2, "if [ $RANK = 1 ]; then exec " FSDP_BINARY " eval none --text none; fi\n" FSDP_BINARY
                       " eval none --text none 2> /dev/null\nsleep 100");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(has(result.err, "[1] fsdp: [model] 'none': got nothing there")) << result.err;
  EXPECT_TRUE(has(result.err, "rank 1 of 2 exited with code 4; all ranks were stopped. Its last lines:\n  | fsdp: "))
      << result.err;
  EXPECT_LT(result.seconds, 30);
}

TEST(Launch, AMistakeOfAllRanksIsToldOnce) {
  const CommandResult result = launch_fsdp(3, "eval none --text none");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(count(result.err, "] fsdp: "), 1) << result.err;
}

TEST(Launch, NamesTheSignal) {
  const CommandResult result = launch_script(2, "if [ $RANK = 0 ]; then echo last words; kill -9 $$; fi; sleep 100");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(has(result.err, "rank 0 of 2 was killed by signal 9")) << result.err;
  EXPECT_TRUE(has(result.err, "  | last words")) << result.err;
}

TEST(Launch, KillsWhatIgnoresTheRequestToStop) {
  const CommandResult result = launch_script(
      2, "if [ $RANK = 1 ]; then exit 4; fi; trap '' TERM; while true; do sleep 0.1; done", {"--grace", "0.5"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_LT(result.seconds, 30);
}

TEST(Launch, RanksDieWithTheLauncher) {
  const io::TemporaryFolder folder;
  const std::string file = folder / "rank";
  const CommandResult result = launch_script(1, "echo $$ > " + file + "; kill -9 $PPID; exec sleep 1000");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  pid_t rank = 0;
  std::ifstream(file) >> rank;
  ASSERT_GT(rank, 1);
  bool gone = false;
  for (int i = 0; i < 500 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(rank) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    gone = text.empty() || has(text, ") Z ");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
}

TEST(Launch, BadArguments) {
  struct Case {
    const char* arguments;
    const char* message;
  };
  for (const Case& c :
       {Case{"launch", "--nproc is missing"}, Case{"launch --nproc 2", "nothing to start"},
        Case{"launch --nproc zero -- train", "got 'zero', expected a whole number from 1 to 4096"},
        Case{"launch --nproc 0 -- train", "from 1 to 4096"},
        Case{"launch --nproc 2 -- trian", "unknown verb trian; did you mean train?"},
        Case{"launch --nproc 2 -- launch --nproc 2 -- train", "cannot launch itself"},
        Case{"launch --nprocs 2 -- train", "unknown option --nprocs"},
        Case{"launch --nproc 2 --grace -1 -- train", "expected a number of seconds from 0"},
        Case{"launch --nproc 2 --max-restarts=1.5 -- train", "--max-restarts: got '1.5', expected a whole number"},
        Case{"launch --nproc 2 --restart-backoff", "--restart-backoff needs a value"},
        Case{"launch --nproc 2 --min-uptime= -- train", "--min-uptime: got ''"}}) {
    const CommandResult result = run_fsdp(c.arguments);
    EXPECT_EQ(result.exit_code, 2) << c.arguments;
    EXPECT_TRUE(has(result.err, c.message)) << c.arguments << ": " << result.err;
  }
  const CommandResult missing = run_fsdp("launch --nproc 1 -- /no/such/program");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(has(missing.err, "cannot run /no/such/program")) << missing.err;
}

}  // namespace
}  // namespace fsdp::app
