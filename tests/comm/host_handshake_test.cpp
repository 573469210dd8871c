// Who is let into the memory of a host's ranks.
#include "fsdp/comm/host/host_handshake.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "fsdp/comm/host/host_links.h"
#include "fsdp/comm/host/unix_socket.h"
#include "tests/support/ranks.h"

namespace fsdp::comm::host_handshake_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(30);
constexpr int64_t kArenaBytes = int64_t{1} << 30;

TEST(HostHandshake, AreNullEverywhereIfOneRankCannotBeReached) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string nowhere = "fsdp-nobody-listens-here 1";
  store->set("name/1", std::vector<uint8_t>(nowhere.begin(), nowhere.end()));
  std::atomic<int> nulls{0};
  testing::run_ranks(3, [&](const World& world) {
    HostLinksOptions options;
    options.arena_bytes = kArenaBytes;
    // The rank that nobody reaches comes last; by then the others have decided.
    if (world.rank == 1) store->wait({"decision"});
    if (!HostLinks::try_connect(store, world.rank, 3, options)) ++nulls;
  });
  EXPECT_EQ(nulls, 3);
}

// Names of abstract sockets that listen, as every user of the host can list them.
std::set<std::string> listening_names() {
  std::set<std::string> names;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    if (const size_t at = line.find("@fsdp-"); at != std::string::npos) names.insert(line.substr(at + 1));
  }
  return names;
}

// Connects to all sockets that listen and says nothing, or the wrong thing, until it goes.
class Intruder {
 public:
  Intruder() {
    thread_ = std::thread([this] {
      const SharedArena arena(kArenaBytes, 4096);
      while (!stop_) {
        for (const std::string& name : listening_names()) {
          for (const bool speaks : {false, true}) {
            FileDescriptor connection = connect_to(name).connection;
            if (connection && speaks) send_greeting(connection, {1, arena.size(), {}}, arena.file());
            if (connection) ++num_connections;
            open_.push_back(std::move(connection));
          }
        }
      }
    });
  }
  ~Intruder() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<int> num_connections{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<FileDescriptor> open_;
  std::thread thread_;
};

TEST(HostHandshake, StrangersOfTheSameUserHoldNobodyUp) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Intruder intruder;
  std::atomic<int> links{0};
  testing::run_ranks(3, [&](const World& world) {
    HostLinksOptions options;
    options.arena_bytes = kArenaBytes;
    options.secret = JobSecret("the secret of this job");
    // The last rank comes once strangers stand before the sockets of the others.
    const auto until = Clock::now() + kDeadline;
    while (world.rank == 2 && intruder.num_connections < 4 && Clock::now() < until) std::this_thread::yield();
    if (HostLinks::try_connect(store, world.rank, 3, options)) ++links;
  });
  EXPECT_GE(intruder.num_connections, 4);
  EXPECT_EQ(links, 3);
}

// What comes of a greeting that says this of a file.
bool is_heard(int64_t arena_bytes, const FileDescriptor& file) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no sockets");
  const FileDescriptor here(ends[0]), there(ends[1]);
  if (!send_greeting(here, {1, arena_bytes, {}}, file)) throw std::runtime_error("not sent");
  return receive_greeting(there, std::chrono::seconds(5)).has_value();
}

TEST(HostHandshake, MemoryThatCanBecomeSmallerIsNotMapped) {
  const SharedArena arena(kArenaBytes, 4096);
  EXPECT_TRUE(is_heard(arena.size(), arena.file()));
  EXPECT_FALSE(is_heard(arena.size() + 1, arena.file()));
  const FileDescriptor open_end(memfd_create("fsdp-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(open_end.get(), kArenaBytes), 0);
  EXPECT_FALSE(is_heard(kArenaBytes, open_end));
}

TEST(HostHandshake, AreNullEverywhereIfOneRankHasAnotherSecret) {
  for (const int odd : {0, 1, 2}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::atomic<int> nulls{0};
    testing::run_ranks(3, [&](const World& world) {
      HostLinksOptions options;
      options.arena_bytes = kArenaBytes;
      options.deadline = std::chrono::seconds(1);
      options.secret = JobSecret(world.rank == odd ? "another secret, as long" : "the secret of this job");
      if (!HostLinks::try_connect(store, world.rank, 3, options)) ++nulls;
    });
    EXPECT_EQ(nulls, 3);
  }
}

}  // namespace
}  // namespace fsdp::comm::host_handshake_test
