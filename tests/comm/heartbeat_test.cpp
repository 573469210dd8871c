// Ranks that are stopped, killed or slow, as processes, on every transport: who is lost is found in time and named by
// all others, and who is not lost is let alone.
#include "fsdp/comm/liveness/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "fsdp/comm/comm.h"
#include "tests/support/rank_processes.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcesses;
using testing::RankResult;

constexpr milliseconds kTimeout{1500};
constexpr double kTimeoutSeconds = 1.5;
// From the stop to the last error, on any transport.
constexpr double kFoundWithin = kTimeoutSeconds + 5;

void sleep(milliseconds time) { std::this_thread::sleep_for(time); }

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What the file holds once it holds `text`, or after a while.
std::string read_file_until(const std::filesystem::path& path, const std::string& text) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string content = read_file(path);
  while (content.find(text) == std::string::npos && std::chrono::steady_clock::now() < until) {
    sleep(milliseconds(20));
    content = read_file(path);
  }
  return content;
}

std::string gather(const World& world, const std::string& unit) {
  const auto comm = world.connection->world();
  const at::Tensor all = at::zeros({world.size});
  comm->all_gather(all, at::ones({1}), {"gather", unit, "aten::linear reads '" + unit + ".weight'"}).wait();
  return "gathered " + std::to_string(all.sum().item<int>());
}

void barrier(const World& world, const std::string& name) { world.connection->world()->barrier({"barrier", name, ""}); }

// Has told the others what it did last.
void barrier_and_tell(const World& world, const std::string& name) {
  barrier(world, name);
  world.connection->publish_calls();
}

ConnectOptions options_for(const std::string& transport, int rank, int size, const RankProcesses& processes) {
  ConnectOptions options = testing::options_for(transport, rank, size);
  options.heartbeat_timeout = kTimeout;
  options.deadline = std::chrono::seconds(60);
  options.dump_folder = processes.folder().path().native();
  return options;
}

int size_for(const std::string& transport) { return transport == "two-level" ? 4 : 3; }

void start_all(RankProcesses& processes, const std::string& transport, const RankProcesses::Body& body) {
  const int size = size_for(transport);
  for (int rank = 0; rank < size; ++rank) {
    processes.start(rank, size, options_for(transport, rank, size, processes), body);
  }
}

std::string place_of(const RankProcesses& processes, int rank) {
  return "(host '" + host_name() + "', process " + std::to_string(processes.process(rank)) + ")";
}

void print_time(const std::string& what, const RankResult& result) {
  ::testing::Test::RecordProperty(what, std::to_string(result.seconds));
}

class Heartbeats : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, Heartbeats, ::testing::Values("gloo", "shm", "two-level"), [](const auto& info) {
  return info.param == std::string("two-level") ? std::string("two_level") : std::string(info.param);
});

TEST_P(Heartbeats, AStoppedRankIsNamedByAllOthers) {
  RankProcesses processes;
  start_all(processes, GetParam(), [](const World& world) {
    barrier_and_tell(world, "start");
    if (world.rank == 1) raise(SIGSTOP);
    return gather(world, "layers.3");
  });
  const std::string place = place_of(processes, 1);
  for (int rank = 0; rank < size_for(GetParam()); ++rank) {
    if (rank == 1) continue;
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << "rank " << rank << ": " << result.text;
    EXPECT_THAT(result.text,
                AllOf(HasSubstr("[comm] rank " + std::to_string(rank) +
                                ": gather of 'layers.3' (aten::linear reads 'layers.3.weight'), call 2: rank 1 " +
                                place + " gave no sign of life for "),
                      HasSubstr("its last known call was barrier of 'start', call 1"), Not(HasSubstr("\n"))));
    EXPECT_GT(result.seconds, kTimeoutSeconds / 2);
    EXPECT_LT(result.seconds, kFoundWithin);
    EXPECT_LT(result.goodbye, 3);
    print_time("stopped_" + std::string(GetParam()) + "_rank" + std::to_string(rank), result);
    const std::string calls = read_file(processes.folder() / ("calls-rank" + std::to_string(rank) + ".jsonl"));
    EXPECT_THAT(calls, AllOf(HasSubstr("\"layers.3\""), HasSubstr("failed")));
  }
}

// Rank 1 is killed; the others call it after a while.
void expect_killed_rank_is_named(const std::string& transport, milliseconds pause) {
  RankProcesses processes;
  start_all(processes, transport, [pause](const World& world) {
    barrier_and_tell(world, "start");
    if (world.rank == 1) raise(SIGKILL);
    sleep(pause);
    return gather(world, "layers.3");
  });
  const std::string place = place_of(processes, 1);
  for (int rank = 0; rank < size_for(transport); ++rank) {
    if (rank == 1) continue;
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << "rank " << rank << ": " << result.text;
    EXPECT_THAT(
        result.text,
        AllOf(HasSubstr("gather of 'layers.3'"), HasSubstr("rank 1 closed its connection " + place),
              HasSubstr("Its last known call was barrier of 'start', call 1"), HasSubstr("It crashed or was killed")));
    EXPECT_LT(result.seconds, kFoundWithin);
    print_time("killed_" + transport + "_rank" + std::to_string(rank), result);
  }
}

TEST_P(Heartbeats, AKilledRankIsNamedAtOnce) { expect_killed_rank_is_named(GetParam(), milliseconds(0)); }

// The transport knows by then, and calls fail as they are made.
TEST_P(Heartbeats, ARankThatWasKilledBeforeTheCallIsNamed) {
  expect_killed_rank_is_named(GetParam(), milliseconds(300));
}

TEST_P(Heartbeats, ARankThatStopsBeforeThereIsAGroupIsNamed) {
  RankProcesses processes;
  start_all(processes, GetParam(), [](const World& world) {
    if (world.rank == 1) raise(SIGSTOP);
    return gather(world, "layers.3");
  });
  for (int rank = 0; rank < size_for(GetParam()); ++rank) {
    if (rank == 1) continue;
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << "rank " << rank << ": " << result.text;
    EXPECT_THAT(result.text,
                AllOf(HasSubstr("rank 1 (host"), HasSubstr("gave no sign of life"), HasSubstr("it made no call yet")));
    EXPECT_LT(result.seconds, kFoundWithin);
  }
}

TEST_P(Heartbeats, ASlowRankIsWaitedFor) {
  RankProcesses processes;
  start_all(processes, GetParam(), [](const World& world) {
    barrier(world, "start");
    const auto until = std::chrono::steady_clock::now() + 2 * kTimeout;
    while (world.rank == 1 && std::chrono::steady_clock::now() < until) at::ones({64, 64}).matmul(at::ones({64, 64}));
    return gather(world, "layers.3");
  });
  for (int rank = 0; rank < size_for(GetParam()); ++rank) {
    const RankResult result = processes.result(rank);
    EXPECT_EQ(result.text, "gathered " + std::to_string(size_for(GetParam())));
  }
}

// Ranks 0 and 1 talk, and so do 2 and 3: none of the latter ever waits for rank 1.
TEST(Heartbeat, RanksOfOtherGroupsEndTheirWaitsToo) {
  RankProcesses processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start(rank, 4, options_for("gloo", rank, 4, processes), [](const World& world) {
      barrier_and_tell(world, "start");
      const auto comm = world.connection->group(world.rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
      if (world.rank == 1) raise(SIGSTOP);
      if (world.rank == 3) sleep(milliseconds(15000));
      comm->barrier({"barrier", "pair", ""});
      return std::string();
    });
  }
  for (const int rank : {0, 2}) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << result.text;
    EXPECT_THAT(result.text, AllOf(HasSubstr("barrier of 'pair'"), HasSubstr("rank 1 (host")));
    EXPECT_LT(result.seconds, kFoundWithin);
  }
  // Rank 3 is in no call, and leaves its log all the same.
  EXPECT_THAT(read_file_until(processes.folder() / "calls-rank3.jsonl", "start"), HasSubstr("start"));
}

// What HostWeights does.
TEST(Heartbeat, WaitsOnSharedMemoryEndToo) {
  RankProcesses processes;
  start_all(processes, "shm", [](const World& world) {
    barrier_and_tell(world, "start");
    if (world.rank == 2) raise(SIGSTOP);
    const auto& links = world.connection->hosts().links();
    const std::vector<int> places = {0, 1, 2};
    const auto wait = [&](milliseconds deadline, const std::atomic<bool>& aborted) {
      links->wait([] { return uint64_t{4}; }, {places, &aborted}, deadline);
    };
    world.connection->world()->await({"publish", "layers.1", ""}, wait);
    return std::string("done");
  });
  for (const int rank : {0, 1}) {
    const RankResult result = processes.result(rank);
    EXPECT_THAT(result.text, AllOf(HasSubstr("publish of 'layers.1'"), HasSubstr("rank 2 (host")));
    EXPECT_LT(result.seconds, kFoundWithin);
  }
}

TEST(Heartbeat, AJobThatIsStoppedAsAWholeGoesOn) {
  RankProcesses processes;
  start_all(processes, "gloo", [](const World& world) {
    barrier(world, "start");
    for (int i = 0; i < 40; ++i) {
      barrier(world, "step");
      sleep(milliseconds(50));
    }
    return std::string("done");
  });
  sleep(milliseconds(1000));
  for (int rank = 0; rank < 3; ++rank) processes.send(rank, SIGSTOP);
  sleep(2 * kTimeout);
  for (int rank = 0; rank < 3; ++rank) {
    processes.send(rank, SIGCONT);
    sleep(milliseconds(200));
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(processes.result(rank).text, "done");
}

TEST(Heartbeat, WithoutItTheDeadlineNamesTheRankThatIsMissing) {
  RankProcesses processes;
  for (int rank = 0; rank < 2; ++rank) {
    ConnectOptions options = options_for("gloo", rank, 2, processes);
    options.heartbeat_timeout = milliseconds(0);
    options.deadline = 2 * kTimeout;
    processes.start(rank, 2, options, [](const World& world) {
      barrier_and_tell(world, "start");
      if (world.rank == 1) raise(SIGSTOP);
      return gather(world, "a");
    });
  }
  const std::string place = place_of(processes, 1);
  EXPECT_THAT(processes.result(0).text,
              AllOf(HasSubstr("not complete after 3 s"),
                    HasSubstr("rank 1 is missing: its last call was barrier of 'start', call 1, "),
                    HasSubstr(" ago " + place)));
}

// ---- the process that hosts the store

TEST(StoreHost, ARankZeroThatStopsIsNamed) {
  RankProcesses processes(StoreHost::kRankZero);
  start_all(processes, "gloo", [](const World& world) {
    barrier(world, "start");
    if (world.rank == 0) raise(SIGSTOP);
    return gather(world, "layers.3");
  });
  const std::string place = place_of(processes, 0);
  for (const int rank : {1, 2}) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << result.text;
    EXPECT_THAT(result.text, AllOf(HasSubstr("gather of 'layers.3'"), HasSubstr("rank 0 " + place),
                                   HasSubstr("which hosts the store of the job, has not answered for ")));
    EXPECT_LT(result.seconds, kFoundWithin);
    EXPECT_LT(result.goodbye, 4);
    print_time("store_stopped_rank" + std::to_string(rank), result);
  }
}

TEST(StoreHost, ARankZeroThatIsKilledIsNamed) {
  RankProcesses processes(StoreHost::kRankZero);
  start_all(processes, "gloo", [](const World& world) {
    barrier(world, "start");
    if (world.rank == 0) raise(SIGKILL);
    return gather(world, "layers.3");
  });
  const std::string place = place_of(processes, 0);
  for (const int rank : {1, 2}) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << result.text;
    EXPECT_THAT(result.text, AllOf(HasSubstr("gather of 'layers.3'"), HasSubstr("rank 0")));
    EXPECT_LT(result.seconds, kFoundWithin);
    print_time("store_killed_rank" + std::to_string(rank), result);
  }
}

// Rank 0 hears first, or last, and takes the store along when it ends.
TEST(StoreHost, ARankZeroThatGivesUpLetsTheOthersHearWhy) {
  RankProcesses processes(StoreHost::kRankZero);
  start_all(processes, "gloo", [](const World& world) {
    barrier_and_tell(world, "start");
    if (world.rank == 1) raise(SIGSTOP);
    return gather(world, "layers.3");
  });
  for (const int rank : {0, 2}) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << result.text;
    EXPECT_THAT(result.text, AllOf(HasSubstr("rank 1 (host"), HasSubstr("gave no sign of life")));
    EXPECT_LT(result.seconds, kFoundWithin);
  }
}

TEST(StoreHost, ARankZeroThatRefusesTheOthersLetsThemHearWhy) {
  RankProcesses processes(StoreHost::kRankZero);
  for (int rank = 0; rank < 4; ++rank) {
    ConnectOptions options = options_for("gloo", rank, 4, processes);
    options.settings = rank == 3 ? "b" : "a";
    processes.start(rank, 4, options, [](const World&) { return std::string("met"); });
  }
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << "rank " << rank << ": " << result.text;
    EXPECT_THAT(result.text, HasSubstr("settings: got b, expected a"));
  }
}

TEST(StoreHost, RanksGoOnWithoutALauncherThatDied) {
  RankProcesses processes;
  start_all(processes, "gloo", [](const World& world) {
    barrier(world, "start");
    sleep(2 * kTimeout);
    barrier(world, "later");
    return gather(world, "layers.3");
  });
  sleep(milliseconds(800));
  processes.send_to_store(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(processes.result(rank).text, "gathered 3");
}

TEST(StoreHost, ALauncherThatHangsIsNamedByThoseThatWait) {
  RankProcesses processes;
  start_all(processes, "gloo", [](const World& world) {
    barrier(world, "start");
    if (world.rank == 1) sleep(milliseconds(15000));
    return gather(world, "layers.3");
  });
  sleep(milliseconds(800));
  processes.send_to_store(SIGSTOP);
  for (const int rank : {0, 2}) {
    const RankResult result = processes.result(rank);
    ASSERT_TRUE(result.ended) << result.text;
    EXPECT_THAT(result.text,
                AllOf(HasSubstr("gather of 'layers.3'"), HasSubstr("the launcher, which hosts the store")));
    EXPECT_LT(result.seconds, kFoundWithin + 1);
  }
}

// ---- arithmetic

TEST(Silence, CountsOnlyTimeInWhichThisProcessRan) {
  Silence silence(milliseconds(2000));
  auto now = Silence::Clock::now();
  silence.look(false, now);
  EXPECT_EQ(silence.length(), milliseconds(0));
  silence.look(false, now += milliseconds(1000));
  EXPECT_EQ(silence.length(), milliseconds(1000));
  silence.look(false, now += std::chrono::hours(1));  // this process was stopped
  EXPECT_EQ(silence.length(), milliseconds(3000));
  silence.look(true, now += milliseconds(1000));
  EXPECT_EQ(silence.length(), milliseconds(0));
}

TEST(Silence, APeriodFitsTheTimeout) {
  EXPECT_EQ(heartbeat_period(std::chrono::seconds(15)), milliseconds(1000));
  EXPECT_EQ(heartbeat_period(std::chrono::seconds(2)), milliseconds(500));
  EXPECT_EQ(heartbeat_period(milliseconds(0)), milliseconds(1000));
}

}  // namespace
}  // namespace fsdp::comm
