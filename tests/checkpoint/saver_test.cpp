// The Saver: what it writes is the state that start() saw; who writes what; which checkpoints stay; and what is left
// when an operation of the disk fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "fsdp/base/fault_point.h"
#include "fsdp/fsdp.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "tests/checkpoint/caught_error.h"
#include "tests/checkpoint/logical_tensors.h"
#include "tests/checkpoint/training_run.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::saver_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Saver;
using checkpoint::SaveReport;
using checkpoint::SaverOptions;
using io::read_text;
using io::TemporaryFolder;
using ::testing::AllOf;
using testing::caught_from;
using testing::CaughtError;
using ::testing::ElementsAre;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_seeded;
using testing::OptimizerKind;
using ::testing::Optional;
using testing::read_logical_tensors;
using testing::run_ranks;
using testing::TrainingPlan;
using testing::TrainingRun;

constexpr uint64_t kSeed = 41;
constexpr uint64_t kOtherSeed = 42;

// While it lives, this process has a fault; ranks are threads of it.
class ArmedFault {
 public:
  explicit ArmedFault(const std::string& text) {
    setenv("FSDP_FAULT", text.c_str(), 1);
    faults::arm(0);
  }
  ~ArmedFault() {
    unsetenv("FSDP_FAULT");
    faults::arm(0);
  }
  ArmedFault(const ArmedFault&) = delete;
  ArmedFault& operator=(const ArmedFault&) = delete;
};

// COLLECTIVE.
void with_fault(const World& world, const std::string& text, const std::function<void()>& action) {
  barrier(world, "before the fault");
  std::optional<ArmedFault> fault;
  if (world.rank == 0) fault.emplace(text);
  barrier(world, "armed");
  action();
  barrier(world, "after the fault");
  fault.reset();
  barrier(world, "disarmed");
}

TrainingPlan plan_of(int ranks) { return {Strategy::kOptimGradsParams, 1, ranks, false, OptimizerKind::kAdamW}; }

std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const io::CheckpointPlace& place : io::list_checkpoints(root)) steps.push_back(place.step);
  return steps;
}

std::vector<std::string> hidden_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().filename().string().front() == '.') names.push_back(entry.path().filename().string());
  }
  return names;
}

SaveReport save_with(Saver& saver, TrainingRun& run, int64_t step) {
  saver.start(step, run.state());
  return saver.finish();
}

void wait_until_written(const Saver& saver) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!saver.written() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(saver.written());
}

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(CheckpointSaver, WritesTheStateThatStartSaw) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    for (int step = 0; step < 3; ++step) run.step(step);
    const std::vector<torch::Tensor> seen = run.tensors();
    std::vector<double> losses;
    Saver saver(world, folder / "run");
    double stopped = 0;                              // seconds that training stood still
    with_fault(world, "delay=500@save.write", [&] {  // writers begin when training has gone on
      stopped += seconds_of([&] { saver.start(3, run.state()); });
      EXPECT_TRUE(saver.in_flight());
      EXPECT_FALSE(saver.written());
      for (int step = 3; step < 5; ++step) losses.push_back(run.step(step));
      EXPECT_THAT(steps_in(folder / "run"), IsEmpty());
      wait_until_written(saver);
    });
    SaveReport report;
    stopped += seconds_of([&] { report = saver.finish(); });
    EXPECT_FALSE(saver.in_flight());
    EXPECT_FALSE(saver.written());
    EXPECT_EQ(report.step, 3);
    EXPECT_GE(report.seconds, 0.5);
    EXPECT_GT(report.stalled_seconds, 0);
    EXPECT_LE(report.stalled_seconds, stopped);

    TrainingRun again(world, plan_of(2), kOtherSeed);
    EXPECT_EQ(checkpoint::load(folder / "run/step-3", again.state()).step, 3);
    expect_same_bits(again.tensors(), seen);
    for (int step = 3; step < 5; ++step) EXPECT_EQ(again.step(step), losses[static_cast<size_t>(step - 3)]);
    expect_same_bits(again.tensors(), run.tensors());
  });
}

TEST(CheckpointSaver, HasOneSaveInFlight) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    Saver saver(world, folder.path());
    EXPECT_FALSE(saver.in_flight());
    EXPECT_FALSE(saver.written());
    EXPECT_THAT(caught_from([&] { saver.finish(); }).code, Optional(ErrorCode::kUsage));
    saver.start(7, run.state());
    const CaughtError caught = caught_from([&] { saver.start(9, run.state()); });
    EXPECT_THAT(caught.code, Optional(ErrorCode::kUsage));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("9"), HasSubstr("7"), HasSubstr("in flight")));
    EXPECT_TRUE(saver.in_flight());
    EXPECT_EQ(saver.finish().step, 7);
    EXPECT_THAT(caught_from([&] { saver.finish(); }).code, Optional(ErrorCode::kUsage));
    EXPECT_THAT(caught_from([&] { saver.start(-1, run.state()); }).code, Optional(ErrorCode::kUsage));
    EXPECT_FALSE(saver.in_flight());
    EXPECT_EQ(save_with(saver, run, 9).step, 9);
    EXPECT_THAT(steps_in(folder.path()), ElementsAre(9, 7));
    barrier(world, "looked");
  });
}

TEST(CheckpointSaver, IsWrittenAtOnceWhereItBlocks) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    Saver behind(world, folder / "behind", {.threads = 3});
    Saver blocking(world, folder / "blocking", {.writing = SaverOptions::Writing::kBlocking});
    const SaveReport report = save_with(behind, run, 1);
    blocking.start(1, run.state());
    EXPECT_TRUE(blocking.written());
    blocking.finish();
    if (world.rank != 0) return;
    int64_t bytes = 0;
    for (const io::CheckpointFile& file : io::read_manifest(folder / "behind/step-1").files) {
      EXPECT_TRUE(read_text(folder / "behind/step-1" / file.name) == read_text(folder / "blocking/step-1" / file.name));
      bytes += static_cast<int64_t>(fs::file_size(folder / "behind/step-1" / file.name));
    }
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_EQ(checkpoint::verify(folder / "behind/step-1"), bytes);
  });
}

// A unit that joins brings tensors of the optimizer along.
TEST(CheckpointSaver, SavesWhatHasAppearedSince) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    Saver saver(world, folder.path(), {.keep_last = 0});
    for (int step = 0; step < 4; ++step) {
      run.step(step);
      save_with(saver, run, step + 1);
    }
    TrainingRun again(world, plan_of(2), kOtherSeed);
    checkpoint::load(folder / "step-4", again.state());
    EXPECT_EQ(again.step(4), run.step(4));
    expect_same_bits(again.tensors(), run.tensors());
  });
  EXPECT_EQ(read_logical_tensors(folder / "step-2").count("optimizer/exp_avg/late.weight"), 0U);
  EXPECT_EQ(read_logical_tensors(folder / "step-3").count("optimizer/exp_avg/late.weight"), 1U);
}

TEST(CheckpointSaver, WhatNobodyFinishedIsNoCheckpoint) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    { Saver(world, folder.path()).start(1, run.state()); }
    barrier(world, "left");
    EXPECT_THAT(steps_in(folder.path()), IsEmpty());
    EXPECT_FALSE(checkpoint::resume(folder.path(), run.state()).has_value());
    if (world.rank == 0) io::remove_leftovers(io::system_files(), folder.path());
  });
  EXPECT_EQ(folder.num_files(), 0U);
}

// ---- which checkpoints stay

TEST(CheckpointSaverKeeps, TheLastAndSomeForEver) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const World& world) {
    TrainingRun run(world, plan_of(1), kSeed);
    Saver saver(world, folder / "some", {.keep_last = 2, .keep_every = 20});
    Saver all(world, folder / "all", {.keep_last = 0});
    for (int step = 10; step <= 60; step += 10) {
      save_with(saver, run, step);
      save_with(all, run, step);
      EXPECT_EQ(read_text(folder / "some/latest"), "step-" + std::to_string(step) + "\n");
    }
  });
  EXPECT_THAT(steps_in(folder / "some"), ElementsAre(60, 50, 40, 20));
  EXPECT_THAT(steps_in(folder / "all"), ElementsAre(60, 50, 40, 30, 20, 10));
  EXPECT_THAT(hidden_in(folder / "some"), IsEmpty());
}

// A run that went back to an older checkpoint: the newer ones may be the damaged ones that it went back from.
TEST(CheckpointSaverKeeps, WhatItCommittedThoughThereAreNewerOnes) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const World& world) {
    TrainingRun run(world, plan_of(1), kSeed);
    for (const int step : {10, 20, 30}) checkpoint::save(folder / ("step-" + std::to_string(step)), run.state());
    fs::remove(folder / "step-30/manifest.json");
    fs::remove(folder / "step-20/manifest.json");
    EXPECT_EQ(checkpoint::resume(folder.path(), run.state())->step, 10);
    Saver saver(world, folder.path(), {.keep_last = 1});
    for (const int step : {15, 18}) {
      run.step(step);
      save_with(saver, run, step);
      EXPECT_GT(checkpoint::verify(folder / ("step-" + std::to_string(step))), 0);
      EXPECT_EQ(checkpoint::resume(folder.path(), run.state())->step, step);
    }
    EXPECT_FALSE(fs::exists(folder / "step-10"));
  });
}

TEST(CheckpointSaverKeeps, TheNewOneOfTwoOfTheSameStep) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    run.step(0);
    checkpoint::save(folder / "step-1", run.state());
    run.step(1);
    checkpoint::save(folder / "step-1", run.state());
    TrainingRun again(world, plan_of(2), kOtherSeed);
    checkpoint::load(folder / "step-1", again.state());
    expect_same_bits(again.tensors(), run.tensors());
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(1));
  EXPECT_THAT(hidden_in(folder.path()), IsEmpty());
}

// ---- who writes what

std::vector<uint64_t> file_sizes(const Strategy strategy, int replicas, int shards) {
  const TemporaryFolder folder;
  run_ranks(replicas * shards, [&](const World& world) {
    const auto linear = make_seeded(kSeed, [] { return std::make_shared<torch::nn::LinearImpl>(600, 500); });
    ShardOptions options;
    options.strategy = strategy;
    fully_shard(*linear, Mesh(world, {{"replicate", replicas}, {"shard", shards}}), options);
    AdamW optimizer(parameters(*linear), {.lr = 0.01});
    linear->forward(torch::ones({2, 600})).square().mean().backward();
    optimizer.step();
    checkpoint::save(folder / "step-1", {.model = *linear, .optimizer = optimizer});
  });
  std::vector<uint64_t> sizes;
  for (const io::CheckpointFile& file : io::read_manifest(folder / "step-1").files) sizes.push_back(file.bytes);
  return sizes;
}

TEST(CheckpointSaver, SharesTheWorkBetweenReplicas) {
  const double state_bytes = 3.0 * 4 * (600 * 500 + 500);  // weight and two moments
  const struct {
    Strategy strategy;
    int replicas;
    int shards;
  } places[] = {{Strategy::kHybrid, 2, 2},
                {Strategy::kHybridOptim, 2, 2},
                {Strategy::kHybridZero2, 3, 1},
                {Strategy::kNoShard, 1, 4},
                {Strategy::kOptimGradsParams, 1, 4}};
  for (const auto& [strategy, replicas, shards] : places) {
    SCOPED_TRACE(c10::str(name(strategy), " ", replicas, "x", shards));
    const std::vector<uint64_t> sizes = file_sizes(strategy, replicas, shards);
    const auto total = static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
    EXPECT_GE(total, state_bytes);
    EXPECT_LE(total, 1.02 * state_bytes);
    for (const uint64_t size : sizes) EXPECT_NEAR(static_cast<double>(size) * sizes.size() / total, 1, 0.06);
  }
}

// ---- a disk that fails

TEST(CheckpointSaverFaults, AFullDiskIsToldOnEveryRankAndHurtsNoOlderCheckpoint) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    TrainingRun again(world, plan_of(2), kOtherSeed);
    Saver saver(world, folder.path(), {.keep_last = 3});
    run.step(0);
    save_with(saver, run, 10);
    const std::vector<torch::Tensor> saved = run.tensors();
    run.step(1);
    with_fault(world, "error=ENOSPC@file.write", [&] {
      const CaughtError caught = caught_from([&] { save_with(saver, run, 20); });
      EXPECT_THAT(caught.code, Optional(ErrorCode::kFileSystem));
      EXPECT_THAT(caught.text, AllOf(HasSubstr(folder.path().string()), HasSubstr("rank-0000"),
                                     HasSubstr("No space left on device"), HasSubstr("step-20")));
    });
    EXPECT_FALSE(saver.in_flight());
    EXPECT_THAT(steps_in(folder.path()), ElementsAre(10));
    EXPECT_EQ(checkpoint::resume(folder.path(), again.state())->step, 10);
    expect_same_bits(again.tensors(), saved);
    barrier(world, "looked");

    save_with(saver, run, 30);
    checkpoint::load(folder / "step-30", again.state());
    expect_same_bits(again.tensors(), run.tensors());
    if (world.rank == 0) io::remove_leftovers(io::system_files(), folder.path());
  });
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(30, 10));
  EXPECT_THAT(hidden_in(folder.path()), IsEmpty());
}

// A writer's failure is not lost while training goes on, nor what a failed start() leaves behind.
TEST(CheckpointSaverFaults, OfAWriterComesOutAtTheFinish) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, plan_of(2), kSeed);
    Saver saver(world, folder.path());
    with_fault(world, "error=EIO@file.sync", [&] {
      saver.start(1, run.state());
      wait_until_written(saver);
      EXPECT_TRUE(saver.in_flight());
    });
    EXPECT_THAT(caught_from([&] { saver.finish(); }).code, Optional(ErrorCode::kFileSystem));
    EXPECT_FALSE(saver.in_flight());
    with_fault(world, "error=EIO@file.make_folder", [&] {
      EXPECT_THAT(caught_from([&] { saver.start(2, run.state()); }).code, Optional(ErrorCode::kFileSystem));
    });
    EXPECT_FALSE(saver.in_flight());
    with_fault(world, "throw@save.snapshot",
               [&] { EXPECT_TRUE(caught_from([&] { save_with(saver, run, 3); }).code.has_value()); });
    EXPECT_FALSE(saver.in_flight());
    EXPECT_EQ(save_with(saver, run, 4).step, 4);
    EXPECT_THAT(steps_in(folder.path()), ElementsAre(4));
    barrier(world, "looked");
  });
}

// Whatever the disk refuses: the newest whole checkpoint is the one before or the one that was being saved, all of it.
struct Refusals {
  const World& world;
  TrainingRun run{world, plan_of(1), kSeed};
  TrainingRun again{world, plan_of(1), kOtherSeed};

  void try_to_save(const std::string& point, int hit, int64_t new_step) {
    const TemporaryFolder folder;
    Saver saver(world, folder.path(), {.keep_last = 2, .writing = SaverOptions::Writing::kBlocking});
    for (const int64_t step : {1, 2}) {
      run.step(0);
      save_with(saver, run, step);
    }
    const std::vector<torch::Tensor> before = run.tensors();
    run.step(0);
    const std::vector<torch::Tensor> after = run.tensors();
    CaughtError caught;
    {
      const ArmedFault fault("error=EIO@" + point + ":hit=" + std::to_string(hit));
      caught = caught_from([&] { save_with(saver, run, new_step); });
    }
    EXPECT_EQ(caught.code.value_or(ErrorCode::kFileSystem), ErrorCode::kFileSystem) << caught.text;
    for (const int64_t step : steps_in(folder.path())) {
      EXPECT_GT(checkpoint::verify(folder / ("step-" + std::to_string(step))), 0);
    }
    ASSERT_TRUE(checkpoint::resume(folder.path(), again.state()).has_value());
    const bool is_new = torch::equal(again.tensors()[0], after[0]);
    EXPECT_TRUE(is_new || caught.code) << "told as saved, and is not there";
    expect_same_bits(again.tensors(), is_new ? after : before);
    run.step(0);
    save_with(saver, run, 4);
    EXPECT_EQ(steps_in(folder.path()).front(), 4);
    io::remove_leftovers(io::system_files(), folder.path());
    EXPECT_THAT(hidden_in(folder.path()), IsEmpty());
  }
};

TEST(CheckpointSaverFaults, EveryOperationOfTheDiskMayFail) {
  run_ranks(1, [&](const World& world) {
    Refusals refusals{world};
    for (const char* point : {"file.make_folder", "file.create", "file.reserve", "file.write", "file.sync",
                              "file.rename", "file.exchange", "file.remove", "file.sync_folder"}) {
      for (int hit = 1; hit <= 6; ++hit) {
        for (const int64_t new_step : {3, 2}) {  // a new one; one that replaces another
          SCOPED_TRACE(c10::str(point, ", time ", hit, ", step ", new_step));
          refusals.try_to_save(point, hit, new_step);
        }
      }
    }
  });
}

}  // namespace
}  // namespace fsdp::saver_test
