#include "fsdp/comm/rendezvous/bounded_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <future>

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kPatience{5000};

// Answers once it is let.
class SlowStore : public c10d::HashStore {
 public:
  explicit SlowStore(std::shared_future<void> gate) : gate_(std::move(gate)) {}
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    gate_.wait();
    HashStore::set(key, value);
  }

 private:
  std::shared_future<void> gate_;
};

class BrokenStore : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string&) override {
    ++asked;
    throw std::runtime_error("Connection reset by peer");
  }
  std::atomic<int> asked{0};
};

TEST(BoundedStore, WritesAndReads) {
  BoundedStore store(c10::make_intrusive<c10d::HashStore>());
  EXPECT_EQ(store.get("a", kPatience), "");
  EXPECT_TRUE(store.set("a", "1", kPatience));
  EXPECT_EQ(store.get("a", kPatience), "1");
  EXPECT_EQ(store.claim("a", "2", kPatience), "1");
  EXPECT_EQ(store.claim("b", "2", kPatience), "2");
  EXPECT_EQ(store.add("sum", 3, kPatience), 3);
  EXPECT_EQ(store.add("sum", 4, kPatience), 7);
}

TEST(BoundedStore, IsNotWaitedForLongerThanAsked) {
  std::promise<void> gate;
  const auto slow = c10::make_intrusive<SlowStore>(gate.get_future().share());
  BoundedStore store(slow);
  const auto begin = Clock::now();
  EXPECT_FALSE(store.set("a", "1", milliseconds(50)));
  EXPECT_FALSE(store.get("a", milliseconds(50)).has_value());
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
  gate.set_value();
  EXPECT_EQ(store.get("a", kPatience), "1");  // it was written later
}

TEST(BoundedStore, EndsWhileTheStoreHangs) {
  std::promise<void> gate;
  const auto slow = c10::make_intrusive<SlowStore>(gate.get_future().share());
  const auto begin = Clock::now();
  {
    BoundedStore store(slow);
    store.set("a", "1", milliseconds(10));
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  gate.set_value();
}

TEST(BoundedStore, IsNotAskedAgainOnceItFailed) {
  const auto broken = c10::make_intrusive<BrokenStore>();
  BoundedStore store(broken);
  store.set("a", "1", kPatience);
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(store.get("a", kPatience).has_value());
  EXPECT_FALSE(store.set("a", "2", kPatience));
  EXPECT_EQ(broken->asked, 1);
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
}

}  // namespace
}  // namespace fsdp::comm
