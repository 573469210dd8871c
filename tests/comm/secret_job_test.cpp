// Whole jobs with a secret, as processes: strangers at their ports change nothing, a rank that does not know the secret
// is named, and a job of one host is not reached from another.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "fsdp/comm/collectives.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/init.h"
#include "fsdp/comm/store/sockets.h"
#include "tests/support/rank_processes.h"
#include "tests/support/tcp_listeners.h"

namespace fsdp::comm::secret_job_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcesses;
using testing::RankResult;
using testing::TcpListener;

const char* const kSecretText = "the secret of this job";

// Of one process.
std::vector<TcpListener> listeners_of(pid_t process) {
  std::set<std::string> sockets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
    sockets.insert(std::filesystem::read_symlink(entry, error).native());
  }
  std::vector<TcpListener> listeners;
  for (const TcpListener& listener : testing::tcp_listeners()) {
    if (sockets.count("socket:[" + listener.inode + "]") > 0) listeners.push_back(listener);
  }
  return listeners;
}

// One of this host that others reach, or its name.
std::string outer_address() {
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "localhost";
  for (const ifaddrs* item = all; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || item->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(item->ifa_addr)->sin_addr, text.data(), text.size());
    if (std::string(text.data()).rfind("127.", 0) != 0) found = text.data();
  }
  freeifaddrs(all);
  if (!found.empty()) return found;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string gather(const World& world) {
  const at::Tensor all = at::zeros({world.size});
  world.connection->world()->all_gather(all, at::full({1}, world.rank + 1.0), {"gather", "a", ""}).wait();
  return std::to_string(all.sum().item<int>());
}

std::string wait_for_file(const std::filesystem::path& path) {
  const auto until = Clock::now() + seconds(30);
  while (!std::filesystem::exists(path) && Clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
  return std::filesystem::exists(path) ? "" : "no " + path.native();
}

class SecretJob : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, SecretJob, ::testing::Values("gloo", "shm", "two-level"), [](const auto& info) {
  return info.param == std::string("two-level") ? std::string("two_level") : std::string(info.param);
});

// At every port of the job: of the store, and of Gloo in each rank.
TEST_P(SecretJob, GoesOnWhileStrangersComeToAllItsPorts) {
  const JobSecret secret(kSecretText);
  RankProcesses processes(StoreHost::kLauncher, secret);
  const auto met = processes.folder() / "met", left = processes.folder() / "left";
  constexpr int kSize = 4;
  for (int rank = 0; rank < kSize; ++rank) {
    ConnectOptions options = testing::options_for(GetParam(), rank, kSize);
    options.secret = secret;
    options.heartbeat_timeout = seconds(5);
    processes.start(rank, kSize, options, [&](const World& world) {
      std::string sums = gather(world);
      if (world.rank == 0) std::ofstream(met) << "met";
      sums += wait_for_file(left);
      for (int i = 0; i < 20; ++i) sums += " " + gather(world);
      return sums;
    });
  }
  ASSERT_EQ(wait_for_file(met), "");
  std::vector<uint16_t> ports{processes.store_port()};
  for (int rank = 0; rank < kSize; ++rank) {
    for (const TcpListener& listener : listeners_of(processes.process(rank))) ports.push_back(listener.port);
  }
  EXPECT_GE(ports.size(), GetParam() == std::string("shm") ? 1U : 1U + kSize);
  std::vector<FileDescriptor> strangers;
  for (const uint16_t port : ports) {
    for (int i = 0; i < 100; ++i) {
      strangers.push_back(try_to_connect("127.0.0.1", port, seconds(5)).connection);
      const std::string words(static_cast<size_t>(i * 7), static_cast<char>(i));  // none, some, many
      if (strangers.back()) send_all(strangers.back(), words, Clock::now() + milliseconds(100));
    }
  }
  std::ofstream(left) << "left";
  std::string expected = "10";
  for (int i = 0; i < 20; ++i) expected += " 10";
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(processes.result(rank).text, expected) << "rank " << rank;
}

TEST(SecretJobs, ARankThatDoesNotKnowTheSecretIsNamedAndTheOthersNameWhoIsMissing) {
  for (const JobSecret& other : {JobSecret(), JobSecret("another secret, as long")}) {
    const JobSecret secret(kSecretText);
    RankProcesses processes(StoreHost::kRankZero);
    for (int rank = 0; rank < 3; ++rank) {
      ConnectOptions options;
      options.secret = rank == 2 ? other : secret;
      options.start_deadline = seconds(2);
      processes.start(rank, 3, options, [](const World&) { return std::string("met"); });
    }
    EXPECT_THAT(processes.result(2).text,
                AllOf(HasSubstr("rank 2 of 3"), HasSubstr("job secret: got"), HasSubstr("FSDP_JOB_SECRET")));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(processes.result(rank).text, HasSubstr("have not started: 2"));
    }
  }
}

void set_environment(int rank, int size, const std::string& address, uint16_t port) {
  for (const char* name : {"FSDP_LAUNCH", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"}) unsetenv(name);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("MASTER_ADDR", address.c_str(), 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("FSDP_TRANSPORT", "gloo", 1);
}

// What init() makes of an environment like torchrun's, whose MASTER_ADDR other hosts reach.
TEST(SecretJobs, AJobOfOneHostListensOnLoopbackAlone) {
  constexpr const char* kLoopback = "0100007F";
  RankProcesses processes(StoreHost::kRankZero);
  const std::string address = outer_address();
  for (int rank = 0; rank < 2; ++rank) {
    processes.start(rank, [&, rank] {
      set_environment(rank, 2, address, processes.store_port());
      setenv("FSDP_JOB_SECRET", kSecretText, 1);
      const World world = init();
      RankResult result{gather(world), 0, 0, true};
      for (const TcpListener& listener : listeners_of(getpid())) result.text += " " + listener.address;
      if (std::getenv("FSDP_JOB_SECRET") != nullptr) result.text += " the secret is left in the environment";
      fsdp::barrier(world, "end");
      return result;
    });
  }
  // Rank 0 hosts the store too.
  EXPECT_EQ(processes.result(0).text, std::string("3 ") + kLoopback + " " + kLoopback) << address;
  EXPECT_EQ(processes.result(1).text, std::string("3 ") + kLoopback) << address;
}

}  // namespace
}  // namespace fsdp::comm::secret_job_test
