// Processes that reach the ports of a job and do not belong to it: they are refused and told of, and the job goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/agent_store.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/comm/store/greeting.h"
#include "fsdp/comm/store/sockets.h"
#include "fsdp/comm/store/store_client.h"
#include "fsdp/comm/transport/gloo_transport.h"
#include "fsdp/comm/transport/link_proof.h"

namespace fsdp::comm::strangers_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kSecretText = "the secret of this job";

// A store with a secret, and what it says of those it refused.
class GuardedStore {
 public:
  explicit GuardedStore(StrangerLimits limits = {}, const JobSecret& secret = JobSecret(kSecretText))
      : server_(options(limits, secret)) {}

  uint16_t port() const { return server_.port(); }

  // The first sentence with `part`, or all there are after a while.
  std::string heard(const std::string& part) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(20), [&] { return text_.find(part) != std::string::npos; });
    return text_;
  }
  int num_heard() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  StoreServerOptions options(StrangerLimits limits, const JobSecret& secret) {
    StoreServerOptions options;
    options.secret = secret;
    options.strangers = limits;
    options.on_refusal = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      text_ += text + "\n";
      ++count_;
      changed_.notify_all();
    };
    return options;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  int count_ = 0;
  StoreServer server_;  // ends first
};

StoreAddress address_of(uint16_t port, const JobSecret& secret, milliseconds deadline = seconds(20)) {
  return {"127.0.0.1", port, secret, 3, "rank 3 of 4 (test)", deadline, nullptr};
}

c10::intrusive_ptr<StoreClient> rank_of(const GuardedStore& store) {
  return c10::make_intrusive<StoreClient>(address_of(store.port(), JobSecret(kSecretText)));
}

void expect_to_work(StoreClient& rank, int64_t sum) { EXPECT_EQ(rank.add("sum", 1), sum); }

FileDescriptor stranger_at(uint16_t port) { return try_to_connect("127.0.0.1", port, seconds(20)).connection; }

// What the store said until it closed the connection; it must, and soon.
std::string last_words(const FileDescriptor& connection) {
  std::string received;
  const auto until = Clock::now() + seconds(20);
  while (receive_some(connection, received, until)) {
  }
  EXPECT_LT(Clock::now(), until) << "the connection stays open";
  return received;
}

std::string refusal_of(const std::function<void()>& function, ErrorCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Strangers, WhoSendsGarbageIsRefusedAndNamed) {
  GuardedStore store;
  const auto rank = rank_of(store);
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'), std::string("\0", 1),
        encode(Application{}).substr(0, 8) + std::string(kApplicationBytes, '\x7f')}) {
    const FileDescriptor stranger = stranger_at(store.port());
    send_all(stranger, garbage, Clock::now() + seconds(5));
    EXPECT_LE(last_words(stranger).size(), kInvitationBytes + kAdmissionBytes);
  }
  EXPECT_THAT(store.heard("does not speak"), HasSubstr("refused a connection from 127.0.0.1:"));
  expect_to_work(*rank, 1);
}

TEST(Strangers, WhoSaysHalfAGreetingAndFallsSilentIsRefused) {
  GuardedStore store({.most = 128, .patience = milliseconds(200)});
  const auto rank = rank_of(store);
  const FileDescriptor stranger = stranger_at(store.port());
  send_all(stranger, encode(Application{}).substr(0, kApplicationBytes / 2), Clock::now() + seconds(5));
  EXPECT_EQ(last_words(stranger).size(), kInvitationBytes);
  const FileDescriptor silent = stranger_at(store.port());
  last_words(silent);
  EXPECT_THAT(store.heard("did not say who it is"), HasSubstr("did not say who it is"));
  expect_to_work(*rank, 1);  // whose own patience is not the strangers'
}

TEST(Strangers, WhoDoesNotKnowTheSecretIsRefusedAndLearnsNothing) {
  GuardedStore store;
  const auto rank = rank_of(store);
  const FileDescriptor stranger = stranger_at(store.port());
  Application application{true, 2, fresh_nonce(), {}};
  application.proof = JobSecret("another secret, as long").prove("rank at the store", {"guess"});
  send_all(stranger, encode(application), Clock::now() + seconds(5));
  const std::string words = last_words(stranger);
  ASSERT_EQ(words.size(), kInvitationBytes + kAdmissionBytes);
  const auto admission = decode_admission(words.substr(kInvitationBytes));
  ASSERT_TRUE(admission.has_value());
  EXPECT_EQ(admission->verdict, AdmissionVerdict::kSecretDiffers);
  EXPECT_EQ(admission->proof, Proof{});  // nothing to try secrets on
  EXPECT_THAT(store.heard("does not know the secret"), HasSubstr("which says that it is rank 2: it does not know"));
  expect_to_work(*rank, 1);
}

// What a rank said to the store once lets nobody in a second time.
TEST(Strangers, WhoRepeatsTheWordsOfARankIsRefused) {
  const JobSecret secret(kSecretText);
  GuardedStore store;
  const auto enter = [&](const std::string& words) {
    const FileDescriptor stranger = stranger_at(store.port());
    send_all(stranger, words, Clock::now() + seconds(5));
    return decode_admission(last_words(stranger).substr(kInvitationBytes))->verdict;
  };
  const FileDescriptor real = stranger_at(store.port());
  std::string received;
  while (received.size() < kInvitationBytes) ASSERT_TRUE(receive_some(real, received, Clock::now() + seconds(5)));
  const Nonce store_nonce = decode_invitation(received)->nonce;
  Application application{true, 0, fresh_nonce(), {}};
  application.proof = proof_of_rank(secret, store_nonce, application.nonce, 0);
  send_all(real, encode(application), Clock::now() + seconds(5));
  received.clear();
  while (received.size() < kAdmissionBytes) ASSERT_TRUE(receive_some(real, received, Clock::now() + seconds(5)));
  EXPECT_EQ(decode_admission(received)->verdict, AdmissionVerdict::kAdmitted);
  EXPECT_EQ(enter(encode(application)), AdmissionVerdict::kSecretDiffers);
}

// It knows c10d's protocol and its magic number, which is all that c10d's store asks for.
TEST(Strangers, AClientOfC10dsStoreIsRefused) {
  GuardedStore store;
  const auto rank = rank_of(store);
  rank->set("secret thing", to_bytes("value"));
  c10d::TCPStoreOptions options;
  options.port = store.port();
  options.waitWorkers = false;
  options.timeout = seconds(3);
  ::testing::internal::CaptureStderr();  // it complains at length
  EXPECT_ANY_THROW({
    c10d::TCPStore stranger("127.0.0.1", options);
    stranger.set("lost", to_bytes("all ranks end"));
  });
  ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(store.heard("does not speak"), HasSubstr("refused"));
  EXPECT_FALSE(rank->check({"lost"}));
  expect_to_work(*rank, 1);
}

// Connections of strangers are closed in the order in which they came; ranks that come meanwhile get in.
TEST(Strangers, AFloodOfConnectionsIsBoundedAndRanksGetIn) {
  GuardedStore store({.most = 16, .patience = seconds(60)});
  const auto rank = rank_of(store);
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    std::vector<FileDescriptor> open;
    while (!stop) {
      open.push_back(stranger_at(store.port()));
      if (open.size() > 300) open.erase(open.begin(), open.begin() + 100);
    }
  });
  EXPECT_THAT(store.heard("too many wait"), HasSubstr("too many wait at a time"));
  for (int64_t i = 1; i <= 10; ++i) expect_to_work(*rank_of(store), i);
  expect_to_work(*rank, 11);
  stop = true;
  flood.join();
  EXPECT_LE(store.num_heard(), 3);  // one of each kind in a minute
}

TEST(Strangers, ATrickleIsToldOnceAMinute) {
  std::vector<std::string> told;
  RefusalLog log([&](const std::string& text) { told.push_back(text); });
  const auto begin = RefusalLog::Clock::now();
  for (int i = 0; i < 1000; ++i) log.tell(RefusalReason::kStranger, "10.0.0.7:1", begin + milliseconds(10 * i));
  log.tell(RefusalReason::kSecretDiffers, "10.0.0.7:2, which says that it is rank 1", begin + seconds(10));
  log.tell(RefusalReason::kStranger, "10.0.0.8:1", begin + RefusalLog::kPause);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_THAT(told[0], AllOf(HasSubstr("10.0.0.7:1"), Not(HasSubstr("more"))));
  EXPECT_THAT(told[1], HasSubstr("rank 1"));
  EXPECT_THAT(told[2], AllOf(HasSubstr("10.0.0.8:1"), HasSubstr("999 more")));
}

// Where there is no descriptor left, strangers make room; then the store waits until there is one.
TEST(Strangers, AStoreWithoutDescriptorsGoesOn) {
  GuardedStore store({.most = 4096, .patience = seconds(60)});
  const auto rank = rank_of(store);
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const FileDescriptor probe(dup(STDERR_FILENO));
  rlimit few = old;
  few.rlim_cur = static_cast<rlim_t>(probe.get()) + 20;
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<FileDescriptor> open;
  while (FileDescriptor stranger = stranger_at(store.port())) open.push_back(std::move(stranger));
  expect_to_work(*rank, 1);
  open.clear();
  setrlimit(RLIMIT_NOFILE, &old);
  expect_to_work(*rank_of(store), 2);
}

TEST(Strangers, ARankWithAnotherSecretOrNoneIsNamed) {
  GuardedStore store;
  GuardedStore open_store({}, {});
  const auto enter = [](uint16_t port, const JobSecret& secret) {
    return refusal_of([&] { StoreClient client(address_of(port, secret)); }, ErrorCode::kUsage);
  };
  EXPECT_THAT(enter(store.port(), JobSecret("another secret, as long")),
              AllOf(HasSubstr("rank 3 of 4"), HasSubstr("job secret: got another one"), HasSubstr("FSDP_JOB_SECRET")));
  EXPECT_THAT(enter(store.port(), {}),
              AllOf(HasSubstr("rank 3 of 4"), HasSubstr("job secret: got none"), HasSubstr("FSDP_JOB_SECRET")));
  EXPECT_THAT(enter(open_store.port(), JobSecret(kSecretText)),
              AllOf(HasSubstr("rank 3 of 4"), HasSubstr("got one, but"), HasSubstr("FSDP_JOB_SECRET")));
  EXPECT_THAT(store.heard("without the secret"), HasSubstr("rank 3: it was started without the secret"));
}

// ---- strangers that listen where a rank expects the store

// Accepts one connection after the other and says `words` to each.
class FalseStore {
 public:
  explicit FalseStore(std::string words) : listener_(listen_on(Reach::kThisHost, 0).descriptor) {
    thread_ = std::thread([this, words = std::move(words)] {
      std::vector<FileDescriptor> open;
      while (!stop_) {
        pollfd waiting{listener_.get(), POLLIN, 0};
        poll(&waiting, 1, /*timeout_ms=*/20);
        FileDescriptor connection(accept(listener_.get(), nullptr, nullptr));
        if (!connection) continue;
        send_all(connection, words, Clock::now() + seconds(5));
        open.push_back(std::move(connection));
      }
    });
  }
  ~FalseStore() {
    stop_ = true;
    thread_.join();
  }
  uint16_t port() const { return port_of(listener_); }

 private:
  FileDescriptor listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Strangers, AStoreThatDoesNotProveItselfIsNotBelieved) {
  FalseStore store(encode(Invitation{true, fresh_nonce()}) + encode(Admission{}));
  EXPECT_THAT(
      refusal_of([&] { StoreClient client(address_of(store.port(), JobSecret(kSecretText))); },
                 ErrorCode::kCommunication),
      AllOf(HasSubstr("rank 3 of 4"), HasSubstr("does not prove that it knows the secret"), HasSubstr("MASTER_PORT")));
}

TEST(Strangers, AnotherProgramAtThePortIsNamed) {
  FalseStore other("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and so on, until it is long enough\r\n");
  FalseStore silent("");
  EXPECT_THAT(refusal_of([&] { StoreClient client(address_of(other.port(), {})); }, ErrorCode::kCommunication),
              AllOf(HasSubstr("is not the store of a job"), HasSubstr("MASTER_PORT")));
  EXPECT_THAT(refusal_of([&] { StoreClient client(address_of(silent.port(), {}, milliseconds(300))); },
                         ErrorCode::kCommunication),
              AllOf(HasSubstr("within 0.3 s"), HasSubstr("does not greet as the store of a job does")));
}

// ---- a launcher whose agent hosts c10d's store

struct Agent {
  Agent() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  LaunchEnvironment environment(int rank) const {
    LaunchEnvironment env;
    env.launcher = "torchrun";
    env.rank = rank;
    env.size = 2;
    env.store_port = store->getPort();
    env.hosted_by = StoreHost::kAgent;
    return env;
  }
  c10::intrusive_ptr<c10d::TCPStore> store;
};

TEST(AgentStore, LeadsToTheStoreOfRankZero) {
  const Agent agent;
  const JobSecret secret(kSecretText);
  auto other = std::async(std::launch::async, [&] { return open_store(agent.environment(1), seconds(20), secret); });
  const auto store = open_store(agent.environment(0), seconds(20), secret);
  store->set("key", to_bytes("value"));
  EXPECT_EQ(to_text(other.get()->get("key")), "value");
  EXPECT_FALSE(agent.store->check({"fsdp/0/key"}));  // strangers can read what is here
  EXPECT_EQ(store_host_of(agent.environment(0), secret), StoreHost::kRankZero);
  EXPECT_EQ(store_host_of(agent.environment(0), {}), StoreHost::kAgent);
}

TEST(AgentStore, IsTheStoreOfAJobWithoutASecret) {
  const Agent agent;
  auto other = std::async(std::launch::async, [&] { return open_store(agent.environment(1), seconds(20)); });
  open_store(agent.environment(0), seconds(20))->set("key", to_bytes("value"));
  EXPECT_EQ(to_text(other.get()->get("key")), "value");
  EXPECT_TRUE(agent.store->check({"fsdp/0/key"}));
}

TEST(AgentStore, ForgedOrMissingProofsAreNamed) {
  const JobSecret secret(kSecretText);
  const auto enter = [&](const Agent& agent, const JobSecret& own) {
    return refusal_of([&] { open_store(agent.environment(1), seconds(5), own); }, ErrorCode::kUsage);
  };
  {
    const Agent agent;
    agent.store->set("fsdp/0/store of rank 0", to_bytes("127.0.0.1 1234 " + std::string(64, '0')));
    EXPECT_THAT(enter(agent, secret), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("is not proven by it")));
  }
  {
    const Agent agent;
    const auto store = open_store(agent.environment(0), seconds(5));
    EXPECT_THAT(enter(agent, secret), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("got one, but rank 0")));
  }
  {
    const Agent agent;
    const auto store = open_store(agent.environment(0), seconds(5), secret);
    EXPECT_THAT(enter(agent, {}), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("got none, but rank 0 has one")));
    EXPECT_THAT(enter(agent, JobSecret("another secret, as long")), HasSubstr("is not proven by it"));
  }
}

// ---- Gloo

TEST(LinkProof, MembersOfAGroupBelieveEachOtherOnlyWithTheSecret) {
  for (const int odd : {-1, 0, 2}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::future<std::string>> members;
    for (int place = 0; place < 3; ++place) {
      members.push_back(std::async(std::launch::async, [&, place]() -> std::string {
        const auto transport = make_gloo_transport(store, {place, 3, seconds(20), "127.0.0.1"});
        const JobSecret secret(place == odd ? "another secret, as long" : kSecretText);
        std::string text = "proven";
        try {
          prove_links(*transport, secret, "4,5,6", {4, 5, 6}, place);
        } catch (const Error& error) {
          text = error.what();
        }
        store->add("done", 1);
        while (store->add("done", 0) < 3) std::this_thread::yield();  // whoever leaves first is not the failure
        return text;
      }));
    }
    for (int place = 0; place < 3; ++place) {
      const std::string text = members[static_cast<size_t>(place)].get();
      if (odd < 0) {
        EXPECT_EQ(text, "proven");
      } else if (place == odd) {
        EXPECT_THAT(text, HasSubstr("does not prove the secret of the job"));
      } else {
        EXPECT_THAT(text, HasSubstr("the link to rank " + std::to_string(4 + odd) + " does not prove the secret"));
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::comm::strangers_test
