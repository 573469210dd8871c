// A power failure at every moment of a save: the operations that a save makes are recorded, each prefix of them is
// replayed on a model of a disk with a cache, and the cache is lost, kept or torn. What is left must always hold what
// was promised.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <set>

#include "tests/io/checkpoint_sample.h"
#include "tests/io/disk_model.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

// The failing disk is a model, so the real one need not be slow.
std::filesystem::path fast_parent() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

// From `operation` on, `step` must hold one of these contents and nothing else; without any it may be missing.
struct Promise {
  size_t operation;
  int64_t step;
  std::set<int> seeds;
  bool may_be_missing;
};

// Records saves, and what each of them promises when.
class Story {
 public:
  Story() { std::filesystem::create_directory(folder_ / "run"); }

  RecordingFiles& files() { return files_; }
  const std::vector<DiskOperation>& operations() const { return files_.operations(); }
  std::filesystem::path root() const { return folder_ / "run/checkpoints"; }
  const std::vector<Promise>& promises() const { return promises_; }

  // Until the save returns the old content of that step may be there, or the new one, or none if there was none.
  void save(int64_t step, int seed) {
    std::set<int> before = seeds_[step];
    const bool is_new = before.empty();
    before.insert(seed);
    promises_.push_back({operations().size(), step, before, is_new});
    save_sample(files_, root(), step, seed, "token-" + std::to_string(seed));
    seeds_[step] = {seed};
    promises_.push_back({operations().size(), step, {seed}, false});
  }

  void prune(const KeepPolicy& policy) {
    const size_t before = operations().size();
    for (int64_t step : prune_checkpoints(files_, root(), policy)) give_up(step, before);
  }

  // It may go any time after so many operations, but whole.
  void give_up(int64_t step, size_t num_operations) {
    promises_.push_back({num_operations, step, seeds_[step], true});
    seeds_[step].clear();
  }

  void hint(int64_t step) { write_latest_hint(files_, root(), step); }

 private:
  TemporaryFolder folder_{fast_parent()};
  RecordingFiles files_{folder_.path()};
  std::map<int64_t, std::set<int>> seeds_;
  std::vector<Promise> promises_;
};

// What is promised after so many operations.
std::map<int64_t, Promise> promised_after(const Story& story, size_t num_operations) {
  std::map<int64_t, Promise> promised;
  for (const Promise& promise : story.promises()) {
    if (promise.operation <= num_operations) promised.insert_or_assign(promise.step, promise);
  }
  return promised;
}

// What is wrong with a disk, or nothing.
std::optional<std::string> violation(const std::filesystem::path& root, const std::map<int64_t, Promise>& promised) {
  std::set<int64_t> found;
  for (const CheckpointPlace& place : list_checkpoints(root)) {
    const auto promise = promised.find(place.step);
    if (promise == promised.end()) return "step " + std::to_string(place.step) + " was never saved";
    SampleTensors content;
    const Caught error = catch_error([&] { content = read_sample(place.path); });
    if (error.text != "no error") return error.text;
    bool is_right = false;
    for (int seed : promise->second.seeds) is_right = is_right || content == sample_tensors(seed);
    if (!is_right) return "step " + std::to_string(place.step) + " holds the wrong content";
    found.insert(place.step);
  }
  for (const auto& [step, promise] : promised) {
    if (!promise.may_be_missing && !found.contains(step)) return "step " + std::to_string(step) + " is missing";
  }
  return std::nullopt;
}

uint64_t base_seed() {
  if (const char* text = std::getenv("FSDP_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

std::vector<PowerLoss> losses(uint64_t seed) {
  std::vector<PowerLoss> losses = {{0, 0}, {1, 1}, {1, 0}, {0, 1}};
  std::mt19937_64 random(seed);
  for (int round = 0; round < 4; ++round) {
    for (double keep : {0.2, 0.5, 0.8}) losses.push_back({keep, keep, random()});
    losses.push_back({1, 0.9, random()});
    losses.push_back({0.5, 1, random()});
  }
  return losses;
}

struct Verdict {
  size_t num_states = 0;  // different ones
  size_t num_violations = 0;
  std::string first;
};

// Checks every prefix under every loss; with `recover`, after what the next run does first.
Verdict check_every_moment(const Story& story, bool recover) {
  const uint64_t seed = base_seed();
  std::cout << "FSDP_TEST_SEED=" << seed << "\n";
  Verdict verdict;
  DiskModel disk;  // the folder "run" is there already, and durable
  disk.apply({DiskOperation::Kind::kMakeFolder, "run"});
  disk.apply({DiskOperation::Kind::kSyncFolder, "."});
  const std::vector<DiskOperation>& operations = story.operations();
  for (size_t done = 0; done <= operations.size(); ++done) {
    if (done > 0) disk.apply(operations[done - 1]);
    const std::map<int64_t, Promise> promised = promised_after(story, done);
    std::set<DiskModel::Tree> seen;  // most losses of one moment leave the same
    for (const PowerLoss& loss : losses(seed + done)) {
      const DiskModel::Tree tree = disk.after(loss);
      if (!seen.insert(tree).second) continue;
      const TemporaryFolder folder(fast_parent());
      materialise(tree, folder.path());
      if (recover) remove_leftovers(system_files(), folder / "run/checkpoints");
      const std::optional<std::string> wrong = violation(folder / "run/checkpoints", promised);
      ++verdict.num_states;
      if (!wrong) continue;
      if (verdict.num_violations++ == 0) {
        verdict.first =
            "after operation " + std::to_string(done) + " of " + std::to_string(operations.size()) + ": " + *wrong;
      }
    }
  }
  std::cout << operations.size() << " operations, " << verdict.num_states << " states, " << verdict.num_violations
            << " violations\n";
  return verdict;
}

void save_two_and_prune(Story& story) {
  story.save(1, 10);
  story.save(2, 20);
  story.prune({.last = 1});
  story.hint(2);
}

void replace_twice(Story& story) {
  story.save(5, 10);
  story.save(5, 20);
  story.save(5, 30);
}

TEST(PowerLoss, ACommittedCheckpointIsNeverLost) {
  Story story;
  save_two_and_prune(story);
  const Verdict verdict = check_every_moment(story, false);
  EXPECT_EQ(verdict.num_violations, 0u) << verdict.first;
  EXPECT_GT(verdict.num_states, 100u);
}

TEST(PowerLoss, NorAfterTheNextRunCleansUp) {
  Story story;
  save_two_and_prune(story);
  const Verdict verdict = check_every_moment(story, true);
  EXPECT_EQ(verdict.num_violations, 0u) << verdict.first;
}

TEST(PowerLoss, AReplacementLeavesTheOldOrTheNew) {
  for (bool recover : {false, true}) {
    Story story;
    replace_twice(story);
    const Verdict verdict = check_every_moment(story, recover);
    EXPECT_EQ(verdict.num_violations, 0u) << verdict.first;
  }
}

TEST(PowerLoss, SoItDoesWithoutSwapsOnceCleanedUp) {
  Story story;
  story.files().can_exchange = false;
  replace_twice(story);
  const Verdict verdict = check_every_moment(story, true);
  EXPECT_EQ(verdict.num_violations, 0u) << verdict.first;
}

// A model that never finds anything proves nothing.
TEST(PowerLoss, AMissingSyncIsFound) {
  for (bool of_files : {true, false}) {
    for (const auto& tell : {save_two_and_prune, replace_twice}) {
      Story story;
      story.files().forgets_file_syncs = of_files;
      story.files().forgets_folder_syncs = !of_files;
      tell(story);
      EXPECT_GT(check_every_moment(story, false).num_violations, 0u);
    }
  }
}

TEST(PowerLoss, RemovingUnderTheOldNameIsFound) {
  Story story;
  story.save(1, 10);
  story.save(2, 20);
  story.give_up(1, story.operations().size());
  story.files().remove_all(checkpoint_path(story.root(), 1));
  EXPECT_GT(check_every_moment(story, false).num_violations, 0u);
}

}  // namespace
}  // namespace fsdp::io
