#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/checkpoint/state/state.h"
#include "fsdp/mesh/mesh.h"

// Checkpoints of sharded training (docs/checkpoint_format.md): folders `step-<N>` that appear complete or not at all,
// that any number of ranks, strategy and layout reads, and in which every byte has a hash. After: PyTorch DCP,
// Megatron's dist checkpointing, Orbax (what is visible is committed).
namespace fsdp::checkpoint {

struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;            // on disk, of all ranks
  double seconds = 0;           // from start() until it was durable
  double stalled_seconds = 0;   // of these, the calling thread could not go on for so long
  std::string cleanup_failure;  // why old checkpoints or the hint `latest` could not be changed; "" if they were
};

// COLLECTIVE over the model's world. Writes `folder`, named `step-<N>`, and returns when it survives a power failure;
// replaces a checkpoint of that name. Throws, on every rank, Error(kFileSystem) with path and cause; what was there
// before then still is. Collects no old checkpoints: see Saver.
SaveReport save(const std::filesystem::path& folder, const State& state);

struct LoadReport {
  int64_t step = 0;
  int64_t world_size = 0;  // ranks that wrote it
  int64_t bytes = 0;       // read by this rank
  double seconds = 0;
};

// COLLECTIVE over the model's world. Each rank reads its ranges only, and checks the hash of what it reads. Throws, on
// every rank, Error(kCheckpoint): for a folder that holds no complete checkpoint; for tensors that are missing, surplus
// or of another shape, all named at once (nothing has been written then); for damaged files, naming file and chunk (the
// state is then partly overwritten: load another checkpoint before it is used).
LoadReport load(const std::filesystem::path& folder, const State& state);

// Called on rank 0 for each checkpoint that resume() cannot use, with the reason.
using PassedOver = std::function<void(const std::filesystem::path& folder, const std::string& reason)>;

// COLLECTIVE. Loads the newest checkpoint below `root` that is whole. Damaged ones are told and passed over; one that
// is whole but of another model is an Error as in load(). Nothing if there is no checkpoint at all. Throws
// Error(kCheckpoint) if there are some and none is whole: training must not silently start anew.
std::optional<LoadReport> resume(const std::filesystem::path& root, const State& state,
                                 const PassedOver& passed_over = {});

struct SaverOptions {
  int64_t keep_last = 2;   // newest checkpoints that stay; 0: all
  int64_t keep_every = 0;  // and those whose step is a multiple of it; 0: none
  // kBehind: start() returns once the state is copied into memory of its own, and threads write it.
  enum class Writing { kBehind, kBlocking } writing = Writing::kBehind;
  int threads = 0;  // writers on each rank; 0: as measured best
};

// Saves a run's checkpoints below one folder, one at a time, and removes old ones. All methods are COLLECTIVE unless
// marked local; a failure is thrown on every rank and leaves older checkpoints alone.
class Saver {
 public:
  // Local. `root` is made by the first save.
  Saver(World world, std::filesystem::path root, SaverOptions options = {});
  // Waits for this rank's writers; a save that nobody finished never becomes a checkpoint.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Begins to save. The state may change as soon as it returns. Throws Error(kUsage) if a save is in flight.
  void start(int64_t step, const State& state);
  // Local. A save was started and not finished.
  bool in_flight() const;
  // Local. In flight, and this rank's part is on the disk (or failed): once so on every rank, finish() does not wait.
  bool written() const;
  // Waits for all ranks' writers and commits. From its return on, the checkpoint is never lost; then old ones go.
  SaveReport finish();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

// Local. Checks a whole checkpoint: manifest, sizes, the hash of every chunk. Throws Error(kCheckpoint | kFileSystem).
// Returns the bytes read.
int64_t verify(const std::filesystem::path& folder, int threads = 2);

}  // namespace fsdp::checkpoint
