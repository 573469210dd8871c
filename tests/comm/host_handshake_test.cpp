// Who is let into the memory of a host's ranks.
#include "fsdp/comm/host/host_handshake.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fsdp/base/advice.h"
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
  std::vector<std::string> obstacles(3);
  testing::run_ranks(3, [&](const World& world) {
    HostLinksOptions options;
    options.arena_bytes = kArenaBytes;
    // The rank that nobody reaches comes last; by then the others have decided.
    if (world.rank == 1) store->wait({"decision"});
    std::string& obstacle = obstacles[static_cast<size_t>(world.rank)];
    if (!HostLinks::try_connect(store, world.rank, 3, options, &obstacle)) ++nulls;
  });
  EXPECT_EQ(nulls, 3);
  for (const std::string& obstacle : obstacles)
    EXPECT_EQ(obstacle, "rank 2 of the host cannot reach rank 1 of the host on a Unix socket");
}

TEST(HostHandshake, RanksWithoutMemoryToShareSayWhy) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> obstacles(2);
  testing::run_ranks(2, [&](const World& world) {
    HandshakeOptions options{kDeadline, kDeadline, {}, "there is none"};
    const SharedArena arena(kArenaBytes, 4096);
    const HandshakeOutcome outcome = shake_hands(*store, world.rank, 2, world.rank == 1 ? nullptr : &arena, options);
    EXPECT_FALSE(outcome.peers);
    obstacles[static_cast<size_t>(world.rank)] = outcome.obstacle;
  });
  for (const std::string& obstacle : obstacles)
    EXPECT_EQ(obstacle, "rank 1 of the host has no memory to share: there is none");
}

std::shared_ptr<Connection> connect_one_of_two(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                               TransportKind transport) {
  ConnectOptions options;
  options.transport = transport;
  return connect(store, rank, 2, options).connection;
}

// Of two ranks of this host, of which one has said no.
c10::intrusive_ptr<c10d::Store> store_with_a_no() {
  auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string no = "no this test forbids it";
  store->set("host/links0/decision", std::vector<uint8_t>(no.begin(), no.end()));
  return store;
}

TEST(HostHandshake, WhoeverStartedTheJobHearsOnceWhyMemoryIsNotShared) {
  std::mutex mutex;
  std::vector<std::string> heard;
  set_advice_handler([&](const Advice& advice) {
    const std::lock_guard lock(mutex);
    heard.push_back(advice.subject + ": " + advice.text);
  });
  const auto store = store_with_a_no();
  std::vector<std::shared_ptr<Connection>> connections(2);  // nobody leaves before all have connected
  testing::run_ranks(2, [&](const World& world) {
    connections[static_cast<size_t>(world.rank)] = connect_one_of_two(store, world.rank, TransportKind::kAuto);
  });
  set_advice_handler({});
  for (const auto& connection : connections) EXPECT_EQ(connection->transport_name(), "gloo");
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].find("shared memory: ranks of one host talk TCP"), 0u) << heard[0];
  EXPECT_NE(heard[0].find(": this test forbids it. If that is meant"), std::string::npos) << heard[0];
}

TEST(HostHandshake, ATransportThatCannotBeHadIsRefusedWithTheReason) {
  const auto store = store_with_a_no();
  testing::run_ranks(2, [&](const World& world) {
    try {
      connect_one_of_two(store, world.rank, TransportKind::kShm);
      ADD_FAILURE() << "they share memory";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("lets them share memory: this test forbids it. Use"), std::string::npos)
          << error.what();
    }
  });
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
    std::vector<std::string> obstacles(3);
    testing::run_ranks(3, [&](const World& world) {
      HostLinksOptions options;
      options.arena_bytes = kArenaBytes;
      options.deadline = std::chrono::seconds(1);
      options.secret = JobSecret(world.rank == odd ? "another secret, as long" : "the secret of this job");
      std::string& obstacle = obstacles[static_cast<size_t>(world.rank)];
      if (!HostLinks::try_connect(store, world.rank, 3, options, &obstacle)) ++nulls;
    });
    EXPECT_EQ(nulls, 3);
    EXPECT_EQ(obstacles, std::vector<std::string>(3, obstacles[0]));
    EXPECT_NE(obstacles[0].find("proves the secret of the job"), std::string::npos) << obstacles[0];
  }
}

}  // namespace
}  // namespace fsdp::comm::host_handshake_test
