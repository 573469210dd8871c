// `fsdp launch` with small shell scripts as ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/app/command.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {
namespace {

CommandResult launch_script(int ranks, const std::string& script, const std::vector<std::string>& options = {}) {
  std::vector<std::string> words{FSDP_BINARY, "launch", "--nproc", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  for (const char* word : {"--", "/bin/sh", "-c"}) {
    words.emplace_back(word);
  }
  words.push_back(script);
  return run_command(words);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Launch, RanksGetTheVariablesOfTorchrun) {
  const CommandResult result = launch_script(
      3, "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $FSDP_LAUNCH; test $MASTER_PORT -gt 1023");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line : {"[0] 0 3 0 3 127.0.0.1 1\n", "[1] 1 3 1 3 127.0.0.1 1\n", "[2] 2 3 2 3 127.0.0.1 1\n"}) {
    EXPECT_TRUE(has(result.out, line)) << result.out;
  }
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

TEST(Launch, ForwardsSignals) {
  const io::TemporaryFolder folder;
  const std::string pid_file = folder / "pid";
  std::thread interrupter([&] {
    for (int i = 0; i < 1000 && !std::filesystem::exists(pid_file + "2"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ifstream file(pid_file + "2");
    pid_t parent = 0;
    file >> parent;
    if (parent > 1) {
      kill(parent, SIGTERM);
    }
  });
  // Each rank says when its trap is set; rank 0 then tells the test whom to signal.
  const std::string ready = folder / "ready";
  const CommandResult result =
      launch_script(2, "trap 'echo told; exit 0' TERM; if [ $RANK = 1 ]; then : > " + ready + "; else while [ ! -e " +
                           ready + " ]; do sleep 0.05; done; echo $PPID > " + pid_file + "; mv " + pid_file + " " +
                           pid_file + "2; fi; while true; do sleep 0.05; done");
  interrupter.join();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_TRUE(has(result.err, "stopped by signal 15")) << result.err;
}

TEST(Launch, RanksDieWithTheLauncher) {
  const io::TemporaryFolder folder;
  const std::string file = folder / "rank";
  const CommandResult result = launch_script(1, "echo $$ > " + file + "; kill -9 $PPID; sleep 1000");
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
        Case{"launch --nproc zero -- train", "expected a number"}, Case{"launch --nproc 0 -- train", "from 1 to 4096"},
        Case{"launch --nproc 2 -- trian", "unknown verb trian"},
        Case{"launch --nproc 2 -- launch --nproc 2 -- train", "cannot launch itself"},
        Case{"launch --nprocs 2 -- train", "unknown option --nprocs"}}) {
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
