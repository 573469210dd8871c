#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "fsdp/buffer/disk_window.h"
#include "fsdp/optim/runs/flat_run.h"

namespace fsdp {

// Elements of what is on a disk that are worked on at a time. Whole blocks of every dtype, and with them whole blocks
// of every kernel.
inline constexpr int64_t kDiskPiece = int64_t{512} << 10;
// Bytes in memory for that: what is worked on, and what the disk brings meanwhile. A piece that is larger is alone.
inline constexpr int64_t kMostOpen = int64_t{32} << 20;

// Updates of runs that are on a disk, in the order in which they come, piece by piece where their rules may: while one
// is computed the disk brings those that follow, of this run or the next, and takes those before.
class DiskPass {
 public:
  using Update = std::function<void(const FlatRun&)>;
  explicit DiskPass(Update update) : update_(std::move(update)) {}

  // Reads of `run` what is needed, and updates what there is no room for otherwise. Throws Error(kFileSystem).
  void add(const FlatRun& run);
  // Returns when all is updated; what is written may be on its way.
  void update_all();
  // Returns when all is updated and written. Throws Error(kFileSystem).
  void finish();

 private:
  struct Piece {
    FlatRun run;
    int64_t bytes = 0;
    std::vector<DiskWindow> windows;  // of weight, gradient, copy and states
  };
  void open(const FlatRun& run);
  void update_oldest();

  Update update_;
  std::deque<Piece> pieces_;
  int64_t open_bytes_ = 0;
  std::set<std::shared_ptr<DiskMemory>> disks_;
};

// Slices of some tensors, one after the other, for one who passes over them: read ahead where they are on a disk.
class DiskSlices {
 public:
  enum class Use { kRead, kChange };
  DiskSlices(const std::vector<at::Tensor>& places, Use use);

  // Calls visit(slice), 1-D, for those of the next tensor. Each tensor once, in the order given; all slices but its
  // last have kDiskPiece elements.
  void pass(const std::function<void(const at::Tensor&)>& visit);

 private:
  struct Slice {
    at::Tensor place;
    bool is_last = false;
    DiskWindow window = {};
  };
  void open_ahead();

  Use use_;
  std::deque<Slice> closed_, open_;
  int64_t open_bytes_ = 0;
};

// DiskMemory::finish_windows() of the disks that these tensors lie on. Throws Error(kFileSystem).
void finish_windows(const std::vector<at::Tensor>& tensors);

}  // namespace fsdp
