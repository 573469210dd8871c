#include "fsdp/comm/comm_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "fsdp/base/error.h"
#include "tests/support/ranks.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

Job gather_job(Comm& comm, const torch::Tensor& output, const std::string& unit) {
  return Job("gather", unit, [&comm, output, unit] {
    return comm.all_gather(output, torch::full({1}, static_cast<float>(comm.rank())), {"gather", unit, ""});
  });
}

std::string error_of(Completion& completion) {
  try {
    completion.wait();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CommThread, CarriesStagesThroughInOrder) {
  run_ranks(3, [](const World& world) {
    const auto comm = world.connection->world();
    CommThread thread("test");
    const torch::Tensor first = torch::zeros({3});
    const torch::Tensor second = torch::zeros({3});
    std::vector<int> order;
    Job job = gather_job(*comm, first, "a");
    job.next.emplace_back([&, comm] {
      order.push_back(1);
      EXPECT_EQ(first[2].item<float>(), 2);
      return comm->all_gather(second, first.narrow(0, 1, 1), {"second", "a", ""});
    });
    job.finish = [&] { order.push_back(2); };
    Completion completion = thread.post(std::move(job));
    completion.wait();
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    EXPECT_TRUE(torch::equal(second, torch::ones({3})));
    EXPECT_FALSE(completion.in_flight());
  });
}

TEST(CommThread, AllReduceOnTheThreadAndOnTheCallerAgree) {
  run_ranks(2, [](const World& world) {
    const auto comm = world.connection->world();
    CommThread thread("test");
    const torch::Tensor mine = torch::arange(6, torch::kFloat) * static_cast<float>(world.rank + 1);
    const torch::Tensor staging = torch::empty({comm->staging_numel(3)});
    const torch::Tensor on_thread = mine.clone();
    thread.post(all_reduce(comm, on_thread, staging, {"reduce", "a", ""})).wait();
    const torch::Tensor here = mine.clone();
    defer(all_reduce(comm, here, staging, {"reduce", "a", ""})).wait();
    EXPECT_TRUE(torch::equal(on_thread, torch::arange(6, torch::kFloat) * 3));
    EXPECT_TRUE(torch::equal(on_thread, here));
  });
}

// What is behind a failed job fails with it instead of waiting for the same rank once more.
TEST(CommThread, AFailureEndsTheQueue) {
  std::promise<void> release;
  const std::shared_future<void> done = release.get_future().share();
  run_ranks(
      2,
      [&](const World& world) {
        const auto comm = world.connection->world();
        if (world.rank == 1) {
          done.wait_for(std::chrono::seconds(20));
          return;
        }
        CommThread thread("test");
        const torch::Tensor output = torch::zeros({2});
        const auto begin = Clock::now();
        Completion first = thread.post(gather_job(*comm, output, "a"));
        Completion second = thread.post(gather_job(*comm, output, "b"));
        Completion third = thread.post(gather_job(*comm, output, "c"));
        EXPECT_THAT(error_of(first), HasSubstr("gather of 'a'"));
        EXPECT_THAT(error_of(second), HasSubstr("gather of 'a'"));
        EXPECT_THAT(error_of(third), HasSubstr("gather of 'a'"));
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(6));
        release.set_value();
      },
      std::chrono::seconds(2));
}

// The memory of a job that nobody wants any more may be freed at once; the jobs around it go on.
TEST(CommThread, AnAbandonedJobLetsGoOfItsMemory) {
  run_ranks(2, [](const World& world) {
    const auto comm = world.connection->world();
    CommThread thread("test");
    const torch::Tensor output = torch::zeros({2});
    if (world.rank == 0) {
      for (const char* unit : {"never", "never either"}) {
        auto lost = std::make_unique<std::vector<float>>(2);
        const torch::Tensor target = torch::from_blob(lost->data(), {2});
        Completion running = thread.post(gather_job(*comm, target, unit));
        Completion queued = thread.post(gather_job(*comm, output, std::string(unit) + ", queued"));
        queued.abandon();
        EXPECT_FALSE(queued.in_flight());
        const auto begin = Clock::now();
        running.abandon();
        lost.reset();
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
      }
    }
    thread.post(gather_job(*comm, output, "met")).wait();
    EXPECT_TRUE(torch::equal(output, torch::arange(2, torch::kFloat)));
  });
}

// A rank that leaves does not wait for peers that are not coming.
TEST(CommThread, DestructionGivesUpWhatIsInFlight) {
  std::promise<void> release;
  const std::shared_future<void> done = release.get_future().share();
  run_ranks(2, [&](const World& world) {
    const auto comm = world.connection->world();
    if (world.rank == 1) {
      done.wait_for(std::chrono::seconds(20));
      return;
    }
    const torch::Tensor output = torch::zeros({2});
    const auto begin = Clock::now();
    Completion in_flight;
    Completion waiting;
    {
      CommThread thread("test");
      in_flight = thread.post(gather_job(*comm, output, "a"));
      waiting = thread.post(gather_job(*comm, output, "b"));
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    release.set_value();
    EXPECT_NE(error_of(in_flight), "no error");
    EXPECT_NE(error_of(waiting), "no error");
  });
}

}  // namespace
}  // namespace fsdp::comm
