#include "io/checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "tests/io/checkpoint_sample.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

// The system's without the syncs, which take long. No two names can be swapped if `can_exchange` is false; operation
// number `fail_at` fails.
class FaultyFiles : public FileOps {
 public:
  struct File : OutputFile {
    File(FaultyFiles& owner, std::unique_ptr<OutputFile> file) : owner(owner), file(std::move(file)) {}
    void write_at(uint64_t offset, const void* data, size_t num_bytes) override {
      owner.count("write");
      file->write_at(offset, data, num_bytes);
    }
    void sync() override { owner.count("sync"); }
    FaultyFiles& owner;
    std::unique_ptr<OutputFile> file;
  };

  void make_folder(const std::filesystem::path& folder) override {
    count("make_folder");
    system_files().make_folder(folder);
  }
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path, WriteMode mode) override {
    count("create");
    return std::make_unique<File>(*this, system_files().create(path, mode));
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    count("rename");
    system_files().rename(from, to);
  }
  bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    if (!can_exchange) return false;
    count("exchange");
    return system_files().exchange(a, b);
  }
  void remove_all(const std::filesystem::path& path) override {
    count("remove_all");
    system_files().remove_all(path);
  }
  void sync_folder(const std::filesystem::path& folder) override {
    count("sync_folder");
    EXPECT_TRUE(std::filesystem::is_directory(folder)) << folder;
  }

  void count(const std::string& op) {
    if (++num_ops == fail_at) throw system_error(op, "x", ENOSPC, "room");
  }

  bool can_exchange = true;
  int num_ops = 0;
  int fail_at = -1;
};

FileOps& fast_files() {
  static FaultyFiles files;
  return files;
}

std::vector<int64_t> steps_of(const std::filesystem::path& root) {
  std::vector<int64_t> steps;
  for (const CheckpointPlace& place : list_checkpoints(root)) steps.push_back(place.step);
  return steps;
}

using Steps = std::vector<int64_t>;

void make_folders(const TemporaryFolder& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) std::filesystem::create_directories(folder / name);
}

TEST(CheckpointFolder, ListsOnlyWhatIsNamedLikeACheckpoint) {
  const TemporaryFolder folder;
  EXPECT_TRUE(list_checkpoints(folder / "none").empty());
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  make_folders(folder, {"step-2", "step-10", "step-0", "step-9223372036854775807", "step-", "step-01", "step--1",
                        "step-+1", "step-1x", "step-1.old", "step-9223372036854775808", ".step-3.tmp-a",
                        ".step-4.old-b", ".step-5", "Step-6", "model", " step-7"});
  write_text(folder / "step-8", "a file");
  write_text(folder / "latest", "step-10\n");
  EXPECT_EQ(steps_of(folder.path()), (Steps{INT64_MAX, 10, 2, 0}));
  EXPECT_EQ(list_checkpoints(folder.path())[1].path, checkpoint_path(folder.path(), 10));
  EXPECT_EQ(catch_error([&] { list_checkpoints(folder / "latest"); }).kind, ErrorKind::kFileSystem);
}

// What a run set aside is its own, though no checkpoint, and stays until somebody removes the run.
TEST(CheckpointFolder, WhatWasSetAsideIsNotForeign) {
  const TemporaryFolder root;
  for (const char* name : {"step-3", "step-7.aside", ".step-9.tmp-a", "latest"}) {
    std::filesystem::create_directory(root / name);
  }
  EXPECT_EQ(find_foreign(root.path()).value_or("nothing"), "nothing");
  ASSERT_EQ(list_checkpoints(root.path()).size(), 1u);
  EXPECT_EQ(list_checkpoints(root.path()).front().step, 3);
  remove_leftovers(system_files(), root.path());
  EXPECT_TRUE(std::filesystem::exists(root / "step-7.aside"));
  EXPECT_FALSE(std::filesystem::exists(root / ".step-9.tmp-a"));
  for (const char* name : {"mine.aside", "step-x.aside", "step-7.aside.aside", "step-7.set", "aside"}) {
    std::filesystem::create_directory(root / name);
    EXPECT_EQ(find_foreign(root.path()).value_or("nothing"), name);
    std::filesystem::remove(root / name);
  }
}

TEST(CheckpointFolder, CommitGivesTheName) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder / "run/checkpoints/";
  const std::filesystem::path staging = start_checkpoint(system_files(), root, 20, "abc");
  EXPECT_EQ(staging.filename(), ".step-20.tmp-abc");
  const CheckpointManifest manifest = write_sample_files(system_files(), staging, 20, 1);
  EXPECT_TRUE(list_checkpoints(root).empty());
  commit_checkpoint(system_files(), staging, manifest_text(manifest), root, 20);
  EXPECT_EQ(steps_of(root), Steps{20});
  EXPECT_FALSE(std::filesystem::exists(staging));
  EXPECT_EQ(read_sample(checkpoint_path(root, 20)), sample_tensors(1));
  save_sample(system_files(), root, 21, 2);
  EXPECT_EQ(steps_of(root), (Steps{21, 20}));
}

TEST(CheckpointFolder, StartRefusesWhatIsNoName) {
  const TemporaryFolder folder;
  for (const auto& [step, token] :
       {std::pair<int64_t, std::string>{-1, "a"}, {1, ""}, {1, "a/b"}, {1, std::string(101, 'a')}}) {
    EXPECT_EQ(catch_error([&] { start_checkpoint(system_files(), folder.path(), step, token); }).kind,
              ErrorKind::kUsage);
  }
  EXPECT_EQ(folder.num_files(), 0u);
}

TEST(CheckpointFolder, SameStepIsReplaced) {
  for (bool can_exchange : {true, false}) {
    const TemporaryFolder folder;
    FaultyFiles files;
    files.can_exchange = can_exchange;
    for (int seed = 0; seed < 3; ++seed) {
      save_sample(files, folder.path(), 20, seed);
      EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 20)), sample_tensors(seed));
      EXPECT_EQ(folder.num_files(), 1u);
    }
  }
}

// Fails each operation of a save in turn. `first` is what was there before, at step `old_step`.
void check_every_failure(int64_t old_step, bool can_exchange) {
  for (int fail_at = 1;; ++fail_at) {
    const TemporaryFolder folder;
    save_sample(fast_files(), folder.path(), old_step, 1);
    FaultyFiles files;
    files.can_exchange = can_exchange;
    files.fail_at = fail_at;
    const Caught error = catch_error([&] { save_sample(files, folder.path(), 20, 2); });
    const bool reached = files.num_ops >= fail_at;
    EXPECT_TRUE(error.text == "no error" || error.says("No space left")) << error.text;
    EXPECT_TRUE(reached || error.text == "no error");
    remove_leftovers(fast_files(), folder.path());
    const Steps steps = steps_of(folder.path());
    EXPECT_EQ(folder.num_files(), steps.size()) << fail_at;
    ASSERT_FALSE(steps.empty()) << fail_at;
    for (int64_t step : steps) {
      const SampleTensors found = read_sample(checkpoint_path(folder.path(), step));
      EXPECT_TRUE((step == old_step && found == sample_tensors(1)) || (step == 20 && found == sample_tensors(2)))
          << fail_at;
    }
    if (error.text == "no error") {
      EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 20)), sample_tensors(2));
    }
    save_sample(fast_files(), folder.path(), 20, 3);
    EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 20)), sample_tensors(3));
    if (!reached) break;
  }
}

TEST(CheckpointFolder, AFailureAnywhereKeepsTheOlderCheckpoint) { check_every_failure(10, true); }
TEST(CheckpointFolder, AFailureAnywhereInAReplacementKeepsOne) { check_every_failure(20, true); }
TEST(CheckpointFolder, AFailureAnywhereInAReplacementWithoutSwapsKeepsOne) { check_every_failure(20, false); }

TEST(CheckpointFolder, AFailedSaveCanBeTriedAgainWithTheSameToken) {
  const TemporaryFolder folder;
  write_text(start_checkpoint(fast_files(), folder.path(), 5, "t") / "rank-00000-of-00002.safetensors", "half");
  save_sample(fast_files(), folder.path(), 5, 1, "t");
  EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 5)), sample_tensors(1));
}

TEST(CheckpointFolder, PrunePolicies) {
  const struct {
    KeepPolicy policy;
    Steps stay;
  } cases[] = {
      {{.last = 0}, {50, 40, 30, 20, 10, 0}},
      {{.last = 1}, {50}},
      {{.last = 2}, {50, 40}},
      {{.last = 9}, {50, 40, 30, 20, 10, 0}},
      {{.last = 1, .every = 20}, {50, 40, 20, 0}},
      {{.last = 2, .every = 25}, {50, 40, 0}},
      {{.last = 0, .every = 20}, {50, 40, 30, 20, 10, 0}},
      {{.last = 1, .committed = 50}, {50}},
      {{.last = 1, .committed = 30}, {50, 40, 30}},
      {{.last = 2, .every = 30, .committed = 30}, {50, 40, 30, 20, 0}},
  };
  for (const auto& c : cases) {
    const TemporaryFolder folder;
    Steps gone;
    for (int64_t step : {10, 50, 0, 30, 20, 40}) {
      std::filesystem::create_directories(checkpoint_path(folder.path(), step) / "sub");
      write_text(checkpoint_path(folder.path(), step) / "a", "a");
    }
    for (int64_t step : {50, 40, 30, 20, 10, 0}) {
      if (std::find(c.stay.begin(), c.stay.end(), step) == c.stay.end()) gone.push_back(step);
    }
    EXPECT_EQ(prune_checkpoints(fast_files(), folder.path(), c.policy), gone);
    EXPECT_EQ(steps_of(folder.path()), c.stay);
    EXPECT_EQ(folder.num_files(), c.stay.size());
    EXPECT_TRUE(prune_checkpoints(fast_files(), folder.path(), c.policy).empty());
  }
  for (const KeepPolicy& bad : {KeepPolicy{.last = -1}, KeepPolicy{.every = -1}}) {
    EXPECT_EQ(catch_error([&] { prune_checkpoints(fast_files(), "x", bad); }).kind, ErrorKind::kUsage);
  }
}

TEST(CheckpointFolder, PruneHidesBeforeItRemoves) {
  for (int fail_at = 1;; ++fail_at) {
    const TemporaryFolder folder;
    for (int64_t step : {1, 2, 3}) save_sample(fast_files(), folder.path(), step, static_cast<int>(step));
    FaultyFiles files;
    files.fail_at = fail_at;
    const Caught error = catch_error([&] { prune_checkpoints(files, folder.path(), {.last = 1}); });
    for (int64_t step : steps_of(folder.path())) {
      EXPECT_EQ(read_sample(checkpoint_path(folder.path(), step)), sample_tensors(static_cast<int>(step)));
    }
    EXPECT_EQ(steps_of(folder.path()).front(), 3);
    remove_leftovers(fast_files(), folder.path());
    prune_checkpoints(fast_files(), folder.path(), {.last = 1});
    EXPECT_EQ(steps_of(folder.path()), Steps{3});
    EXPECT_EQ(folder.num_files(), 1u);
    if (error.text == "no error") break;
  }
}

TEST(CheckpointFolder, LeftoversGoAndNothingElse) {
  const TemporaryFolder folder;
  save_sample(fast_files(), folder.path(), 3, 3);
  make_folders(folder, {".step-3.tmp-a", ".step-4.tmp-b/sub", ".step-3.old-0", ".step-9.old-", ".other",
                        ".step-x.tmp-a", ".step-4.bak-b", "step-7"});
  write_text(folder / ".latest.tmp", "half");
  write_text(folder / ".step-5.tmp-file", "a file is not ours");
  remove_leftovers(fast_files(), folder.path());
  EXPECT_EQ(folder.num_files(), 6u);
  for (const char* name : {"step-3", "step-7", ".other", ".step-x.tmp-a", ".step-4.bak-b", ".step-5.tmp-file"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
  remove_leftovers(fast_files(), folder / "none");
}

TEST(CheckpointFolder, ACommitCutInHalfIsFinishedIfComplete) {
  const TemporaryFolder folder;
  save_sample(fast_files(), folder.path(), 20, 1);
  const std::filesystem::path staging = start_checkpoint(fast_files(), folder.path(), 20, "t");
  const CheckpointManifest manifest = write_sample_files(fast_files(), staging, 20, 2);
  write_text(staging / kManifestName, manifest_text(manifest));
  std::filesystem::rename(folder / "step-20", folder / ".step-20.old-0");
  remove_leftovers(fast_files(), folder.path());
  EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 20)), sample_tensors(2));
  EXPECT_EQ(folder.num_files(), 1u);

  std::filesystem::rename(folder / "step-20", folder / ".step-20.tmp-u");
  remove_leftovers(fast_files(), folder.path());
  EXPECT_EQ(read_sample(checkpoint_path(folder.path(), 20)), sample_tensors(2)) << "all but the name was there";

  std::filesystem::rename(folder / "step-20", folder / ".step-20.tmp-u");
  std::filesystem::remove(folder / ".step-20.tmp-u" / kManifestName);
  remove_leftovers(fast_files(), folder.path());
  EXPECT_EQ(folder.num_files(), 0u);
}

TEST(CheckpointFolder, HintNamesTheFolder) {
  const TemporaryFolder folder;
  write_text(folder / ".latest.tmp", "half");
  write_latest_hint(system_files(), folder.path(), 20);
  write_latest_hint(system_files(), folder.path(), 40);
  EXPECT_EQ(read_text(folder / "latest"), "step-40\n");
  EXPECT_EQ(folder.num_files(), 1u);
}

TEST(CheckpointFolder, FreeBytes) {
  const TemporaryFolder folder;
  EXPECT_GT(free_bytes(folder.path()), 0u);
  EXPECT_EQ(catch_error([&] { free_bytes(folder / "none"); }).kind, ErrorKind::kFileSystem);
}

// A process that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const std::filesystem::path& folder) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      std::optional<FolderLock> lock;
      const char got = catch_error([&] { lock.emplace(folder); }).text == "no error" ? 'y' : 'n';
      [[maybe_unused]] const ssize_t written = ::write(ends[1], &got, 1);
      for (;;) ::pause();
    }
    char got = 0;
    while (::read(ends[0], &got, 1) < 0 && errno == EINTR) {
    }
    has_lock_ = got == 'y';
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  bool has_lock() const { return has_lock_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool has_lock_ = false;
};

TEST(FolderLock, KeepsOtherProcessesOutUntilItsHolderDies) {
  const TemporaryFolder folder;
  Holder holder(folder.path());
  ASSERT_TRUE(holder.has_lock());
  const Caught error = catch_error([&] { FolderLock lock(folder.path()); });
  EXPECT_EQ(error.kind, ErrorKind::kUsage);
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const std::string words = "process '" + std::to_string(holder.pid()) + "' on host '" + host + "'";
  EXPECT_TRUE(error.says(words) && error.says(folder.path().native()) && error.is_one_line()) << error.text;
  holder.kill();
  const FolderLock lock(folder.path());
  EXPECT_FALSE(Holder(folder.path()).has_lock());
}

TEST(FolderLock, DeletingTheFileFreesNothing) {
  const TemporaryFolder folder;
  Holder holder(folder.path());
  std::filesystem::remove(folder / ".lock");
  for (int i = 0; i < 2; ++i) {
    const Caught error = catch_error([&] { FolderLock lock(folder.path()); });
    EXPECT_TRUE(error.kind == ErrorKind::kUsage && error.says("whose lock file was deleted")) << error.text;
  }
  holder.kill();
  const FolderLock lock(folder.path());
}

TEST(FolderLock, MovesAndEndsWithItsObject) {
  const TemporaryFolder folder;
  {
    FolderLock first(folder.path());
    EXPECT_EQ(catch_error([&] { FolderLock again(folder.path()); }).kind, ErrorKind::kUsage);
    FolderLock second(std::move(first));
    EXPECT_FALSE(Holder(folder.path()).has_lock());
  }
  FolderLock third(folder.path());
  EXPECT_EQ(catch_error([&] { FolderLock lock(folder / "none"); }).kind, ErrorKind::kFileSystem);
  std::filesystem::create_directory(folder / "sub");
  third = FolderLock(folder / "sub");
  const FolderLock fourth(folder.path());
}

TEST(FolderLock, StrangeContentIsMadePrintable) {
  const TemporaryFolder folder;
  Holder holder(folder.path());
  write_text(folder / ".lock", "a\n\x01 b");
  EXPECT_TRUE(catch_error([&] { FolderLock lock(folder.path()); }).is_one_line());
  write_text(folder / ".lock", "");
  EXPECT_TRUE(catch_error([&] { FolderLock lock(folder.path()); }).says("another process"));
}

}  // namespace
}  // namespace fsdp::io
