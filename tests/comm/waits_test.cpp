#include "fsdp/comm/transport/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>

#include "fsdp/comm/liveness/wait_clock.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

class Endless : public Transfer {
 public:
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_aborted_; });
    throw TransferFailure(TransferFailure::Kind::kOther, -1, "given up by this rank");
  }
  void abort() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      is_aborted_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_aborted_ = false;
};

void wait_in(const std::shared_ptr<Waits>& waits) {
  Endless transfer;
  const Waits::Scope scope(waits, transfer);
  EXPECT_THROW(transfer.wait(), TransferFailure);
}

TEST(Waits, AreAllGivenUpAtOnceAndLaterOnesToo) {
  const auto waits = std::make_shared<Waits>();
  EXPECT_EQ(waits->longest(), milliseconds(0));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { wait_in(waits); });
  while (waits->longest() < milliseconds(20)) std::this_thread::yield();
  EXPECT_FALSE(waits->reason().has_value());
  waits->give_up("rank 1 is lost");
  waits->give_up("another reason");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(waits->reason(), "rank 1 is lost");
  wait_in(waits);
  EXPECT_EQ(waits->longest(), milliseconds(0));
}

TEST(Waits, MayBeNobodys) {
  Endless transfer;
  const Waits::Scope scope(nullptr, transfer);
}

TEST(Waits, WorkThatBlocksIsLeftBehind) {
  const auto waits = std::make_shared<Waits>();
  EXPECT_EQ(run_unless_given_up(*waits, "", [] { return 7; }), 7);
  EXPECT_THROW(run_unless_given_up(*waits, "", []() -> int { throw std::out_of_range("own"); }), std::out_of_range);
  const auto transfer = std::make_shared<Endless>();
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    waits->give_up("rank 1 is lost");
  });
  try {
    run_unless_given_up(*waits, "cannot connect: ", [transfer] { transfer->wait(); });
    ADD_FAILURE() << "returned";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot connect: rank 1 is lost");
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
  }
  other.join();
  transfer->abort();
}

TEST(WaitClock, CountsNestedWaitsOnceAndEachThreadForItself) {
  const auto before = waited_by_this_thread();
  {
    const WaitClock outer;
    const WaitClock inner;
    std::this_thread::sleep_for(milliseconds(20));
  }
  const auto waited = waited_by_this_thread() - before;
  EXPECT_GE(waited, milliseconds(20));
  std::thread([] { EXPECT_EQ(waited_by_this_thread().count(), 0); }).join();
  {
    const WaitClock outer;
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_GE(waited_by_this_thread() - before, waited + milliseconds(5));
}

}  // namespace
}  // namespace fsdp::comm
