// The store of a job does what c10d's stores do, over its own connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <future>
#include <random>

#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/comm/store/store_client.h"
#include "fsdp/comm/store/store_server.h"

namespace fsdp::comm::job_store_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

c10::intrusive_ptr<StoreClient> client_of(const StoreServer& server, milliseconds deadline = std::chrono::seconds(20)) {
  return c10::make_intrusive<StoreClient>(
      StoreAddress{"127.0.0.1", server.port(), {}, 1, "rank 1 of 2 (test)", deadline, nullptr});
}

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
    return error.what();
  }
  return "no error";
}

// One operation, chosen at random, on a store; what it returned as text.
std::string one_call(c10d::Store& store, std::mt19937& random) {
  const auto below = [&](uint32_t limit) { return random() % limit; };
  const std::string key = "key" + std::to_string(below(4));
  const std::string value = std::string(below(3), 'v') + std::to_string(below(3));
  const std::string expected = below(2) == 0 ? "" : std::to_string(below(3));
  switch (below(6)) {
    case 0:
      store.set(key, to_bytes(value));
      return "set " + key;
    case 1:
      return store.check({key}) ? to_text(store.get(key)) : "nothing at " + key;
    case 2:
      return to_text(store.compareSet(key, to_bytes(expected), to_bytes(value)));
    case 3:
      return std::to_string(store.add("sum" + key, static_cast<int64_t>(below(100)) - 50));
    case 4:
      return std::to_string(static_cast<int>(store.deleteKey(key)));
    default:
      return std::to_string(store.getNumKeys()) + std::to_string(static_cast<int>(store.check({key, "sumkey0"})));
  }
}

TEST(JobStore, AnswersAsHashStoreDoes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const StoreServer server;
  const auto store = client_of(server);
  c10d::HashStore reference;
  std::mt19937 first(seed), second(seed);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(one_call(*store, first), one_call(reference, second)) << "call " << i;
}

TEST(JobStore, ManyKeysAtATime) {
  const StoreServer server;
  const auto store = client_of(server);
  store->multiSet({"a", "b"}, {to_bytes("1"), to_bytes("")});
  EXPECT_EQ(store->multiGet({"b", "a"}), (std::vector<std::vector<uint8_t>>{to_bytes(""), to_bytes("1")}));
  store->append("a", to_bytes("2"));
  store->append("c", to_bytes("3"));
  EXPECT_EQ(to_text(store->get("a")), "12");
  EXPECT_EQ(to_text(store->get("c")), "3");
  EXPECT_TRUE(store->hasExtendedApi());
}

TEST(JobStore, LargeValuesArriveWhole) {
  const StoreServer server;
  const auto store = client_of(server);
  std::vector<uint8_t> value(20'000'000);
  std::mt19937 random(7);
  for (uint8_t& byte : value) byte = static_cast<uint8_t>(random());
  store->set("large", value);
  EXPECT_EQ(store->clone()->get("large"), value);
}

TEST(JobStore, WaitsUntilAllKeysAreThere) {
  const StoreServer server;
  const auto reader = client_of(server), writer = client_of(server);
  auto waiting = std::async(std::launch::async, [&] {
    reader->wait({"a", "b", "c"});
    return to_text(reader->get("c"));
  });
  for (const char* key : {"c", "a", "b"}) {
    EXPECT_EQ(waiting.wait_for(milliseconds(30)), std::future_status::timeout);
    writer->set(key, to_bytes("value"));
  }
  EXPECT_EQ(waiting.get(), "value");
}

TEST(JobStore, AKeyThatIsTakenAwayAgainIsWaitedFor) {
  const StoreServer server;
  const auto reader = client_of(server), writer = client_of(server);
  writer->set("a", to_bytes("1"));
  auto waiting = std::async(std::launch::async, [&] { return reader->multiGet({"a", "b"}); });
  EXPECT_EQ(waiting.wait_for(milliseconds(30)), std::future_status::timeout);
  writer->deleteKey("a");
  writer->set("b", to_bytes("2"));
  EXPECT_EQ(waiting.wait_for(milliseconds(30)), std::future_status::timeout);
  writer->set("a", to_bytes("3"));
  EXPECT_EQ(waiting.get(), (std::vector<std::vector<uint8_t>>{to_bytes("3"), to_bytes("2")}));
}

TEST(JobStore, AKeyThatDoesNotComeIsNamed) {
  const StoreServer server;
  const auto store = client_of(server);
  EXPECT_THAT(error_of([&] {
                store->wait({"a", "b"}, milliseconds(50));
              }),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("after 0.05 s there is no 'a' and 1 more")));
  store->set("a", to_bytes("1"));  // and goes on
  EXPECT_EQ(to_text(store->get("a")), "1");
}

TEST(JobStore, AddingToATextIsAnErrorAndNotANumber) {
  const StoreServer server;
  const auto store = client_of(server);
  store->set("a", to_bytes("text"));
  EXPECT_THAT(error_of([&] { store->add("a", 1); }), HasSubstr("the value at 'a' is no number"));
  EXPECT_EQ(to_text(store->get("a")), "text");
}

TEST(JobStore, AStoreThatEndsIsNamedAndStaysGone) {
  auto server = std::make_unique<StoreServer>();
  const auto store = client_of(*server);
  const std::string port = std::to_string(server->port());
  server.reset();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of([&] { store->set("a", to_bytes("1")); }),
                AllOf(HasSubstr("127.0.0.1:" + port), HasSubstr("does not answer")));
  }
}

TEST(JobStore, RanksByTheHundred) {
  const StoreServer server;
  constexpr int kRanks = 150;
  std::vector<std::future<int64_t>> sums;
  for (int rank = 0; rank < kRanks; ++rank) {
    sums.push_back(std::async(std::launch::async, [&, rank] {
      const auto store = client_of(server);
      store->set("rank" + std::to_string(rank), to_bytes("here"));
      for (int other = 0; other < kRanks; ++other) store->get("rank" + std::to_string(other));
      return store->add("done", 1);
    }));
  }
  int64_t most = 0;
  for (auto& sum : sums) most = std::max(most, sum.get());
  EXPECT_EQ(most, kRanks);
}

// ---- what is read from a connection

TEST(StoreMessages, WhatIsWrittenIsRead) {
  const StoreRequest request{
      StoreOperation::kCompareSet, milliseconds(12345), -7, {"key"}, {"", std::string("\0\n", 2)}};
  const auto read = decode_request(encode(request));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->operation, request.operation);
  EXPECT_EQ(read->patience, request.patience);
  EXPECT_EQ(read->number, request.number);
  EXPECT_EQ(read->keys, request.keys);
  EXPECT_EQ(read->values, request.values);
}

TEST(StoreMessages, CutOrChangedTheyAreRefusedOrReadButNeverMore) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string whole = encode(StoreRequest{StoreOperation::kSet, milliseconds(1), 2, {"a", "bc"}, {"", "value"}});
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decode_request(whole.substr(0, size)));
  EXPECT_FALSE(decode_request(whole + "x"));
  for (int i = 0; i < 20000; ++i) {
    std::string changed = whole;
    for (int j = 0; j < 3; ++j) changed[random() % changed.size()] = static_cast<char>(random());
    const auto request = decode_request(changed);
    if (request) {
      EXPECT_EQ(encode(*request), changed);
    }
    const auto answer = decode_answer(changed);
    if (answer) {
      EXPECT_EQ(encode(*answer), changed);
    }
  }
}

TEST(StoreMessages, OperationsNeedTheirKeysAndValues) {
  for (const StoreRequest& request :
       {StoreRequest{StoreOperation::kSet, {}, 0, {"a"}, {}}, StoreRequest{StoreOperation::kAdd, {}, 1, {}, {}},
        StoreRequest{StoreOperation::kCompareSet, {}, 0, {"a"}, {"1"}},
        StoreRequest{StoreOperation::kGet, {}, 0, {}, {"1"}},
        StoreRequest{static_cast<StoreOperation>(99), {}, 0, {}, {}}}) {
    EXPECT_FALSE(decode_request(encode(request))) << static_cast<int>(request.operation);
  }
}

TEST(FrameCodec, OnlyWhatTheOtherSideSentInItsOrderIsOpened) {
  const JobSecret secret("0123456789abcdef");
  const Nonce store_nonce = fresh_nonce(), rank_nonce = fresh_nonce();
  FrameCodec rank(secret, store_nonce, rank_nonce, FrameCodec::Side::kRank);
  const std::string first = rank.seal("first"), second = rank.seal("second");
  const auto open = [&](const std::string& bytes, FrameCodec::Side side = FrameCodec::Side::kStore,
                        const JobSecret& with = JobSecret("0123456789abcdef")) {
    FrameCodec codec(with, store_nonce, rank_nonce, side);
    std::string rest = bytes, message;
    const auto opened = codec.open(rest, message);
    return opened == FrameCodec::Opened::kFrame ? message : opened == FrameCodec::Opened::kForged ? "forged" : "more";
  };
  EXPECT_EQ(open(first + second), "first");
  EXPECT_EQ(open(second), "forged");                               // one was left out
  EXPECT_EQ(open(first, FrameCodec::Side::kRank), "forged");       // sent back to its sender
  EXPECT_EQ(open(first, FrameCodec::Side::kStore, {}), "forged");  // no secret
  EXPECT_EQ(open(first.substr(0, first.size() - 1)), "more");
  for (size_t at = sizeof(uint32_t); at < first.size(); ++at) {
    std::string changed = first;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_EQ(open(changed), "forged") << "byte " << at;
  }
  EXPECT_EQ(open("\xff\xff\xff\xff"), "forged");  // nobody makes room for that
}

}  // namespace
}  // namespace fsdp::comm::job_store_test
