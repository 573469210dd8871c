// Peers that die, fall silent or go another way: every wait ends, and its error names the culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fsdp/base/error.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/rendezvous/store.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/reserved_port.h"
#include "tests/support/tcp_listeners.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

constexpr auto kShortDeadline = std::chrono::seconds(2);

std::string communication_error(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
    return error.what();
  }
  return "no error";
}

torch::Tensor gather(Comm& comm, const std::string& unit, float value) {
  const torch::Tensor output = torch::zeros({comm.size()});
  comm.all_gather(output, torch::full({1}, value), {"gather", unit, "aten::linear reads '" + unit + ".weight'"}).wait();
  return output;
}

// Lets some ranks stay, connected and silent, until others are done.
class Release {
 public:
  explicit Release(int count) : missing_(count) {}
  void arrive() {
    if (--missing_ == 0) all_arrived_.set_value();
  }
  void wait() const { done_.wait_for(std::chrono::seconds(30)); }

 private:
  std::atomic<int> missing_;
  std::promise<void> all_arrived_;
  std::shared_future<void> done_ = all_arrived_.get_future().share();
};

TEST(Failure, ASilentPeerIsNamedWithItsLastCall) {
  Release release(2);
  run_ranks(
      3,
      [&](const World& world) {
        const auto comm = world.connection->world();
        comm->barrier({"barrier", "start", ""});
        if (world.rank == 1) {
          release.wait();
          return;
        }
        const auto begin = Clock::now();
        const std::string text = communication_error([&] { gather(*comm, "layers.3", 0); });
        const auto took = Clock::now() - begin;
        release.arrive();
        release.wait();
        EXPECT_THAT(text, AllOf(HasSubstr("gather of 'layers.3'"), HasSubstr("reads 'layers.3.weight'"),
                                HasSubstr("rank 1 is missing: its last call was barrier of 'start'")));
        EXPECT_THAT(text, Not(HasSubstr("rank 0 is missing")));
        EXPECT_THAT(text, Not(HasSubstr("rank 2 is missing")));
        EXPECT_GE(took, kShortDeadline - std::chrono::milliseconds(200));
        EXPECT_LT(took, 3 * kShortDeadline);
      },
      kShortDeadline);
}

TEST(Failure, APeerThatNeverCalledIsNamedSo) {
  Release release(1);
  run_ranks(
      2,
      [&](const World& world) {
        const auto comm = world.connection->world();
        if (world.rank == 1) {
          release.wait();
          return;
        }
        const std::string text = communication_error([&] { comm->barrier({"barrier", "", ""}); });
        release.arrive();
        EXPECT_THAT(text, HasSubstr("rank 1 is missing: it made no call yet"));
      },
      kShortDeadline);
}

TEST(Failure, RanksThatGoDifferentWaysNameEachOtherAndGetNoData) {
  Release release(2);
  run_ranks(
      2,
      [&](const World& world) {
        const auto comm = world.connection->world();
        const torch::Tensor output = torch::full({2}, -7.0F);
        const std::string unit = world.rank == 0 ? "a" : "b";
        const std::string text = communication_error([&] {
          comm->all_gather(output, torch::full({1}, 100.0F + static_cast<float>(world.rank)), {"gather", unit, ""})
              .wait();
        });
        release.arrive();
        release.wait();
        const std::string other = world.rank == 0 ? "rank 1" : "rank 0";
        EXPECT_THAT(text, AllOf(HasSubstr("gather of '" + unit + "'"), HasSubstr(other),
                                HasSubstr(world.rank == 0 ? "gather of 'b'" : "gather of 'a'")));
        EXPECT_EQ(output[1 - world.rank].item<float>(), -7.0F);
      },
      kShortDeadline);
}

TEST(Failure, DifferentSizesOrOperationsNeverMeet) {
  Release release(2);
  run_ranks(
      2,
      [&](const World& world) {
        const auto comm = world.connection->world();
        const int64_t numel = world.rank == 0 ? 4 : 8;
        const torch::Tensor output = torch::full({2 * numel}, -7.0F);
        const std::string text = communication_error([&] {
          comm->all_gather(output, torch::ones({numel}), {"gather", "a", ""}).wait();
        });
        release.arrive();
        release.wait();
        EXPECT_THAT(text, HasSubstr("gather of 'a'"));
        EXPECT_TRUE(torch::equal(output.narrow(0, (1 - world.rank) * numel, numel), torch::full({numel}, -7.0F)));
      },
      kShortDeadline);
}

TEST(Failure, ARankThatLeavesIsNoticedAtOnce) {
  Release release(2);
  const auto body = [&](const World& world) {
    const auto comm = world.connection->world();
    comm->barrier({"barrier", "start", ""});
    if (world.rank == 2) throw std::runtime_error("leaves");  // its connection goes with it
    const auto begin = Clock::now();
    const std::string text = communication_error([&] { gather(*comm, "a", 1); });
    release.arrive();
    release.wait();
    EXPECT_THAT(text, AllOf(HasSubstr("rank 2 closed its connection"), HasSubstr("gather of 'a'")));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  };
  EXPECT_THROW(run_ranks(3, body, std::chrono::seconds(60)), std::runtime_error);
}

TEST(Failure, TheLogOfCallsIsWrittenToTheDumpFolder) {
  const io::TemporaryFolder folder;
  io::write_text(folder / "others", "theirs");
  std::filesystem::create_symlink("others", folder / "calls-rank0.jsonl");  // of whoever may write there
  run_ranks(
      2,
      [&](const World& world) {
        const auto comm = world.connection->world();
        world.connection->set_dump_folder(folder.path().native());
        comm->barrier({"barrier", "start", ""});
        if (world.rank == 1) return;
        EXPECT_NE(communication_error([&] { gather(*comm, "a", 1); }), "no error");
      },
      kShortDeadline);
  EXPECT_EQ(io::read_text(folder / "others"), "theirs");
  std::ifstream file(folder / "calls-rank0.jsonl");
  std::vector<nlohmann::json> calls;
  for (std::string line; std::getline(file, line);) calls.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0]["state"], "done");
  EXPECT_EQ(calls[1]["unit"], "a");
  EXPECT_EQ(calls[1]["state"], "failed");
}

TEST(Failure, MissingRanksAreNamedAtTheStart) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ConnectOptions options;
  options.start_deadline = std::chrono::milliseconds(300);
  EXPECT_THAT(communication_error([&] { connect(store, 0, 4, options); }), HasSubstr("have not started: 1, 2, 3"));
}

// ---- processes

LaunchEnvironment environment(int rank, int size, uint16_t port) {
  LaunchEnvironment env;
  env.launcher = "test";
  env.rank = rank;
  env.size = size;
  env.store_port = port;
  env.hosted_by = StoreHost::kLauncher;
  return env;
}

std::FILE* start_rank(int rank, uint16_t port) {
  const std::string command =
      c10::str("OMP_NUM_THREADS=1 timeout 60 '", FSDP_DYING_RANK, "' ", rank, " ", static_cast<int>(port));
  return popen(command.c_str(), "r");
}

std::string read_all(std::FILE* pipe) {
  std::string text;
  std::array<char, 4096> part{};
  for (size_t n = 0; (n = fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), n);
  pclose(pipe);
  return text;
}

TEST(Failure, ADeadProcessIsNamedByAllOthersQuickly) {
  const StoreServer server;
  std::array<std::FILE*, 3> children{};
  for (int rank = 0; rank < 3; ++rank) children[static_cast<size_t>(rank)] = start_rank(rank, server.port());
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = read_all(children[static_cast<size_t>(rank)]);
    if (rank == 2) continue;
    EXPECT_THAT(text, HasSubstr("rank 2 closed its connection"));
    const size_t result = text.find("RESULT ");
    ASSERT_NE(result, std::string::npos) << text;
    EXPECT_LT(std::stod(text.substr(result + 7)), 10.0);
  }
}

// Local addresses at which this host listens on `port`.
std::vector<std::string> listening_addresses(uint16_t port) {
  std::vector<std::string> addresses;
  for (const testing::TcpListener& listener : testing::tcp_listeners()) {
    if (listener.port == port) addresses.push_back(listener.address);
  }
  return addresses;
}

TEST(Failure, TheStoreOfAJobOfOneHostIsNotReachedFromOthers) {
  constexpr const char* kLoopback = "0100007F";
  const StoreServer server;
  EXPECT_THAT(listening_addresses(server.port()), ElementsAre(kLoopback));
  for (const char* name : {"127.0.0.1", "localhost"}) {
    const testing::ReservedPort port;
    LaunchEnvironment env = environment(0, 2, port.number());
    env.store_host = name;
    env.hosted_by = StoreHost::kRankZero;
    const auto store = open_store(env, std::chrono::seconds(20));
    EXPECT_THAT(listening_addresses(env.store_port), ElementsAre(kLoopback)) << name;
    env.rank = 1;
    const auto other = open_store(env, std::chrono::seconds(20));
    store->set("key", to_bytes("value"));
    EXPECT_EQ(to_text(other->get("key")), "value");
  }
}

TEST(Failure, APortInUseIsNamed) {
  const StoreServer taken;
  LaunchEnvironment env = environment(0, 2, taken.port());
  env.hosted_by = StoreHost::kRankZero;
  EXPECT_THAT(communication_error([&] { open_store(env, std::chrono::seconds(5)); }),
              AllOf(HasSubstr(std::to_string(taken.port())), HasSubstr("in use")));
}

TEST(Failure, AStoreThatNobodyHostsIsNamed) {
  const testing::ReservedPort port;
  ::testing::internal::CaptureStderr();
  const auto begin = Clock::now();
  const std::string error =
      communication_error([&] { open_store(environment(1, 2, port.number()), std::chrono::seconds(2)); });
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // one sentence, no stack traces of c10d before it
  EXPECT_THAT(error,
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("127.0.0.1:" + std::to_string(port.number()) + " within 2 s"),
                    HasSubstr("Connection refused")));
}

TEST(Failure, AStoreOfAnUnknownHostIsNamed) {
  LaunchEnvironment env = environment(1, 2, 29500);
  env.store_host = "no-such-host.invalid";
  EXPECT_THAT(communication_error([&] { open_store(env, std::chrono::milliseconds(100)); }),
              AllOf(HasSubstr("no-such-host.invalid:29500 within 0.1 s"),
                    AnyOf(HasSubstr("not known"), HasSubstr("name resolution"))));
}

// Ranks may come before the process that hosts the store.
TEST(Failure, AStoreThatComesLateIsWaitedFor) {
  const testing::ReservedPort port;
  auto late = std::async(std::launch::async,
                         [&] { return open_store(environment(1, 2, port.number()), std::chrono::seconds(30)); });
  EXPECT_EQ(late.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  LaunchEnvironment host = environment(0, 2, port.number());
  host.hosted_by = StoreHost::kRankZero;
  const auto store = open_store(host, std::chrono::seconds(30));
  store->set("greeting", to_bytes("hello"));
  EXPECT_EQ(to_text(late.get()->get("greeting")), "hello");
}

}  // namespace
}  // namespace fsdp::comm
